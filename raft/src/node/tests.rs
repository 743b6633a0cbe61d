use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex as StdMutex, Weak};

use openraft::raft::SnapshotResponse;
use openraft::testing::{StoreBuilder, Suite};

use super::*;
use crate::snapshot::SnapshotView;
use crate::transport::{Alone, Answer, TransportError, Weight};
use crate::types::StorageError;

/// A test state: `key=value` commands in a sorted map.
#[derive(Clone, Default)]
struct Map {
    rows: BTreeMap<String, String>,
    raft_state: Option<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
#[error("not a key=value command")]
struct MapError;

struct MapView(Map);

impl SnapshotView for MapView {
    fn copy_to(self: Box<Self>, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, encode(&(self.0.rows, self.0.raft_state)))
    }
}

/// A log that is soon cut.
const FEW: Limits = Limits {
    checkpoint_entries: 500,
    checkpoint_bytes: 1 << 20,
    kept_entries: 200,
    kept_bytes: 1 << 20,
};

impl StateMachine for Shared {
    type Error = MapError;

    fn is_full(_: &MapError) -> bool {
        false
    }

    fn raft_state(&self) -> Result<Option<Vec<u8>>, MapError> {
        Ok(self.0.lock().unwrap().raft_state.clone())
    }

    fn apply(&mut self, commands: &[&[u8]], state: &[u8]) -> Result<Vec<Vec<u8>>, MapError> {
        let mut map = self.0.lock().unwrap();
        let mut replies = Vec::new();
        for c in commands {
            let (k, v) =
                std::str::from_utf8(c).ok().and_then(|t| t.split_once('=')).ok_or(MapError)?;
            let old = map.rows.insert(k.to_owned(), v.to_owned());
            replies.push(old.unwrap_or_default().into_bytes());
        }
        map.raft_state = Some(state.to_vec());
        Ok(replies)
    }

    fn checkpoint(&mut self) -> Result<(), MapError> {
        Ok(())
    }

    fn view(&self) -> Result<Box<dyn SnapshotView>, MapError> {
        Ok(Box::new(MapView(self.0.lock().unwrap().clone())))
    }

    fn install(&mut self, file: &Path) -> Result<(), MapError> {
        let (rows, raft_state) = decode(&std::fs::read(file).unwrap()).unwrap();
        *self.0.lock().unwrap() = Map { rows, raft_state };
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<StdMutex<Map>>);

struct SqliteLog;

impl StoreBuilder<TypeConfig, LogStore, Adapter<Shared>, tempfile::TempDir> for SqliteLog {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, Adapter<Shared>), StorageError> {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::create(&dir.path().join("raft.db"), 1).unwrap();
        let adapter = Adapter::new(Shared::default(), dir.path().to_owned(), Stall::default());
        Ok((dir, log, adapter))
    }
}

#[test]
fn the_sqlite_log_passes_openrafts_own_suite() {
    Suite::test_all(SqliteLog).unwrap();
}

type Nodes = Arc<StdMutex<HashMap<u64, Weak<Node>>>>;

/// Carries messages between nodes of one process.
struct InProcess(Nodes);

impl Transport for InProcess {
    fn call<'a>(
        &'a self,
        target: u64,
        address: &'a str,
        request: Vec<u8>,
        weight: Weight,
    ) -> Answer<'a> {
        let _ = weight;
        let node = self.0.lock().unwrap().get(&target).and_then(Weak::upgrade);
        Box::pin(async move {
            match node {
                Some(node) => Ok(node.handle(&request).await),
                None => Err(TransportError { target, address: address.into(), why: "down".into() }),
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_one_remembers_its_commands_and_id() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("raft.db");
    let map = Shared::default();
    {
        let log = LogStore::create(&db, 77).unwrap();
        let mut node = Node::start(log, map.clone(), Alone, dir.path().into(), FEW).unwrap();
        node.initialize("here").await.unwrap();
        assert!(node.wait_for_leader(Duration::from_secs(10)).await);
        assert_eq!(node.propose(b"a=1".to_vec()).await.unwrap(), b"");
        assert_eq!(node.propose(b"a=2".to_vec()).await.unwrap(), b"1");
        node.shutdown().await;
    }
    // A state machine that lost everything is rebuilt from the log.
    let empty = Shared::default();
    let log = LogStore::open(&db).unwrap();
    assert_eq!(log.node_id(), 77);
    let node = Node::start(log, empty.clone(), Alone, dir.path().into(), FEW).unwrap();
    node.initialize("here").await.unwrap();
    assert!(node.wait_for_leader(Duration::from_secs(10)).await);
    node.read_barrier().await.unwrap();
    assert_eq!(empty.0.lock().unwrap().rows, map.0.lock().unwrap().rows);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_agree_and_a_late_one_gets_a_snapshot() {
    let nodes = Nodes::default();
    let mut folders = Vec::new();
    let mut started = Vec::new();
    let mut start = |id: u64| {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::create(&dir.path().join("raft.db"), id).unwrap();
        let map = Shared::default();
        let node = Node::start(log, map.clone(), InProcess(nodes.clone()), dir.path().into(), FEW);
        let node = Arc::new(node.unwrap());
        nodes.lock().unwrap().insert(id, Arc::downgrade(&node));
        folders.push(dir);
        started.push(Arc::clone(&node));
        (node, map)
    };
    let (first, map1) = start(1);
    let (_second, map2) = start(2);
    let members = (1..=3).map(|id| (id, format!("node-{id}"))).collect();
    first.initialize_members(members).await.unwrap();
    assert!(first.wait_for_leader(Duration::from_secs(10)).await);
    let leader = first.status().leader.unwrap();
    let leader = nodes.lock().unwrap()[&leader].upgrade().unwrap();
    for i in 0..700 {
        leader.propose(format!("k{}={i}", i % 50).into_bytes()).await.unwrap();
    }
    leader.checkpoint().await.unwrap();
    let cut = std::time::Instant::now() + Duration::from_secs(20);
    while leader.status().purged.is_none_or(|n| n < 300) {
        assert!(std::time::Instant::now() < cut, "the log was not cut: {:?}", leader.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_third, map3) = start(3);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let rows = |m: &Shared| m.0.lock().unwrap().rows.clone();
    while rows(&map1) != rows(&map3) || rows(&map1) != rows(&map2) || rows(&map3).is_empty() {
        assert!(std::time::Instant::now() < deadline, "the nodes did not become equal");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Breaks at every third piece of a snapshot, and counts what goes over it.
struct Breaking {
    inner: InProcess,
    pieces: Arc<StdMutex<(u64, u64)>>,
}

impl Transport for Breaking {
    fn call<'a>(
        &'a self,
        target: u64,
        address: &'a str,
        request: Vec<u8>,
        weight: Weight,
    ) -> Answer<'a> {
        let _ = weight;
        if let Ok(Request::Piece(piece)) = decode(&request) {
            let mut pieces = self.pieces.lock().unwrap();
            (pieces.0, pieces.1) = (pieces.0 + 1, pieces.1 + piece.data.len() as u64);
            if pieces.0.is_multiple_of(3) {
                let why = "the line broke".to_owned();
                let address = address.to_owned();
                return Box::pin(async move { Err(TransportError { target, address, why }) });
            }
        }
        self.inner.call(target, address, request, weight)
    }
}

/// Writes values of 1 MiB each, and waits until the log is cut to less than all of them.
async fn fill_and_cut(node: &Node, values: u64) {
    for n in 0..values {
        let value = format!("k{n}={}", "v".repeat(1024 * 1024));
        node.propose(value.into_bytes()).await.unwrap();
    }
    node.checkpoint().await.unwrap();
    let cut = std::time::Instant::now() + Duration::from_secs(20);
    while node.status().purged.is_none_or(|n| n < values / 2) {
        assert!(std::time::Instant::now() < cut, "the log was not cut: {:?}", node.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_goes_on_where_a_broken_line_ended() {
    let nodes = Nodes::default();
    let pieces = Arc::<StdMutex<(u64, u64)>>::default();
    let start = |id: u64| {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::create(&dir.path().join("raft.db"), id).unwrap();
        let map = Shared::default();
        let (inner, pieces) = (InProcess(nodes.clone()), Arc::clone(&pieces));
        let transport = Breaking { inner, pieces };
        let node = Node::start(log, map.clone(), transport, dir.path().into(), FEW).unwrap();
        let node = Arc::new(node);
        nodes.lock().unwrap().insert(id, Arc::downgrade(&node));
        (node, map, dir)
    };
    let (first, map, _kept) = start(1);
    first.initialize("here").await.unwrap();
    assert!(first.wait_for_leader(Duration::from_secs(10)).await);
    // Twelve pieces.
    const VALUES: u64 = 12;
    fill_and_cut(&first, VALUES).await;
    let (second, late, _kept_too) = start(2);
    assert!(
        first.approach_members(&BTreeMap::from([(1, true), (2, true)]), |_| true).await.unwrap()
    );
    let rows = |m: &Shared| m.0.lock().unwrap().rows.clone();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while rows(&map) != rows(&late) {
        assert!(std::time::Instant::now() < deadline, "the snapshot never came");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (calls, bytes) = *pieces.lock().unwrap();
    assert!(calls > VALUES, "{calls} pieces");
    // A broken piece goes again, and nothing that had come.
    let whole = VALUES * 1024 * 1024;
    assert!(bytes < whole * 17 / 10, "{bytes} bytes went for {whole}");
    drop(second);
}

/// Carries 500 kB a second to each node on each of its connections, one request after the other.
struct Slow {
    inner: InProcess,
    lines: [tokio::sync::Mutex<()>; 3],
    /// Bytes of pieces of snapshots.
    pieces: Arc<AtomicU64>,
}

impl Transport for Slow {
    fn call<'a>(
        &'a self,
        target: u64,
        address: &'a str,
        request: Vec<u8>,
        weight: Weight,
    ) -> Answer<'a> {
        Box::pin(async move {
            {
                let _turn = self.lines[weight as usize].lock().await;
                if matches!(weight, Weight::Snapshot) {
                    self.pieces.fetch_add(request.len() as u64, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_micros(2 * request.len() as u64)).await;
            }
            self.inner.call(target, address, request, weight).await
        })
    }
}

/// A node all of whose lines to others are slow.
fn behind_slow_lines(nodes: &Nodes, id: u64) -> (Arc<Node>, Shared, tempfile::TempDir) {
    counted_behind_slow_lines(nodes, id, &Arc::default())
}

fn counted_behind_slow_lines(
    nodes: &Nodes,
    id: u64,
    pieces: &Arc<AtomicU64>,
) -> (Arc<Node>, Shared, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let log = LogStore::create(&dir.path().join("raft.db"), id).unwrap();
    let map = Shared::default();
    let lines = Default::default();
    let transport = Slow { inner: InProcess(nodes.clone()), lines, pieces: Arc::clone(pieces) };
    let limits = Limits { checkpoint_entries: 50, kept_entries: 5_000, ..FEW };
    let node = Node::start(log, map.clone(), transport, dir.path().into(), limits).unwrap();
    let node = Arc::new(node);
    nodes.lock().unwrap().insert(id, Arc::downgrade(&node));
    (node, map, dir)
}

async fn wait_until_equal(a: &Shared, b: &Shared, rows: usize) {
    let of = |m: &Shared| m.0.lock().unwrap().rows.clone();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while of(a) != of(b) || of(a).len() < rows {
        assert!(std::time::Instant::now() < deadline, "the nodes did not become equal");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_comes_once_over_a_slow_line_while_writes_go_on() {
    let (nodes, pieces) = (Nodes::default(), Arc::default());
    let (first, map, _a) = counted_behind_slow_lines(&nodes, 1, &pieces);
    first.initialize("here").await.unwrap();
    assert!(first.wait_for_leader(Duration::from_secs(10)).await);
    const VALUES: u64 = 5;
    fill_and_cut(&first, VALUES).await;
    let (_second, late, _b) = behind_slow_lines(&nodes, 2);
    let members = BTreeMap::from([(1, true), (2, false)]);
    assert!(first.approach_members(&members, |_| true).await.unwrap());
    // More entries than lie between two checkpoints, and each is agreed on while it is sent.
    let mut written = 0;
    while late.0.lock().unwrap().rows.is_empty() {
        first.propose(format!("w{written}=x").into_bytes()).await.unwrap();
        written += 1;
        assert!(written < 10_000, "the snapshot never came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(written > 50, "{written} entries were written meanwhile");
    wait_until_equal(&map, &late, 5).await;
    let (sent, whole) = (pieces.load(Ordering::SeqCst), VALUES * 1024 * 1024);
    assert!((whole..whole * 3 / 2).contains(&sent), "{sent} bytes went for {whole}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_nothing_yet_takes_its_first_entries_over_a_slow_line() {
    let nodes = Nodes::default();
    let (first, map, _a) = behind_slow_lines(&nodes, 1);
    first.initialize("here").await.unwrap();
    assert!(first.wait_for_leader(Duration::from_secs(10)).await);
    // A first page that takes longer than entries are waited for before a heartbeat goes.
    for n in 0..6 {
        let value = format!("k{n}={}", "v".repeat(200 * 1024));
        first.propose(value.into_bytes()).await.unwrap();
    }
    let (_second, late, _b) = behind_slow_lines(&nodes, 2);
    let members = BTreeMap::from([(1, true), (2, false)]);
    assert!(first.approach_members(&members, |_| true).await.unwrap());
    wait_until_equal(&map, &late, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_reach_a_node_behind_a_slow_line_and_nobody_asks_to_lead() {
    let nodes = Nodes::default();
    let (first, map, _a) = behind_slow_lines(&nodes, 1);
    let (_second, late, _b) = behind_slow_lines(&nodes, 2);
    let members = (1..=2).map(|id| (id, format!("node-{id}"))).collect();
    first.initialize_members(members).await.unwrap();
    assert!(first.wait_for_leader(Duration::from_secs(10)).await);
    let leader = first.status().leader.unwrap();
    let leader = nodes.lock().unwrap()[&leader].upgrade().unwrap();
    let term = leader.status().term;
    // Each takes many times longer than a heartbeat, and longer than an election.
    for n in 0..3 {
        let value = format!("k{n}={}", "v".repeat(1024 * 1024));
        let proposed = leader.propose(value.into_bytes());
        tokio::time::timeout(Duration::from_secs(30), proposed).await.unwrap().unwrap();
    }
    wait_until_equal(&map, &late, 3).await;
    assert_eq!(leader.status().term, term, "the other node heard its leader all the time");
}

/// A folder whose log is cut up to a snapshot of 20 entries that has come, and that nothing was taken
/// over of: a crash came between.
async fn broken_off(dir: &Path) -> LogStore {
    let log = LogStore::create(&dir.join("raft.db"), 1).unwrap();
    let whole = Shared::default();
    let mut node = Node::start(log, whole.clone(), Alone, dir.to_owned(), FEW).unwrap();
    node.initialize("here").await.unwrap();
    assert!(node.wait_for_leader(Duration::from_secs(10)).await);
    for n in 0..20 {
        node.propose(format!("k{n}=v").into_bytes()).await.unwrap();
    }
    node.shutdown().await;
    drop(node);
    let log = LogStore::open(&dir.join("raft.db")).unwrap();
    let applied = Applied::of(&whole).unwrap().last.unwrap();
    log.begin_anew(applied, openraft::Vote::new(applied.leader_id.term, 1)).unwrap();
    whole.view().unwrap().copy_to(&snapshot::installing(dir)).unwrap();
    log
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_taking_over_a_crash_broke_off_is_taken_over_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let log = broken_off(dir.path()).await;
    let empty = Shared::default();
    let node = Node::start(log, empty.clone(), Alone, dir.path().into(), FEW).unwrap();
    assert!(node.wait_for_leader(Duration::from_secs(10)).await);
    node.propose(b"more=v".to_vec()).await.unwrap();
    assert_eq!(empty.0.lock().unwrap().rows.len(), 21);
    assert!(!snapshot::installing(dir.path()).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_takes_over_a_snapshot_that_had_come_and_refuses_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let log = broken_off(dir.path()).await;
    let mut empty = Shared::default();
    assert!(log.last_id().unwrap().is_some_and(|(_, index)| index > 20));
    crate::recover(&log, &mut empty, dir.path(), b"own=life").unwrap();
    assert_eq!(empty.0.lock().unwrap().rows.len(), 21);
    assert!(!snapshot::installing(dir.path()).exists());
    // Without the snapshot, entries would be missing without a word.
    let mut nothing = Shared::default();
    let refused = crate::recover(&log, &mut nothing, dir.path(), b"own=life").unwrap_err();
    assert!(refused.to_string().contains("was cut up to entry"), "{refused}");
    assert!(nothing.0.lock().unwrap().rows.is_empty());
}

/// What a node answers once it no longer takes a snapshot over: the last piece again asks.
async fn taken_over(node: &Node, piece: impl Fn() -> SnapshotPiece) -> SnapshotResponse<u64> {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        assert!(std::time::Instant::now() < deadline, "the snapshot is never taken over");
        let answer = node.handle(&encode(&Request::Piece(piece()))).await;
        match decode(&answer).unwrap() {
            Response::Piece(Ok(PieceAnswer::Installed(answer))) => return answer,
            Response::Piece(Ok(PieceAnswer::Installing | PieceAnswer::NotKept { .. })) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            _ => panic!("the piece is not taken"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_was_refused_to_one_leader_is_not_there_for_the_next() {
    let (theirs, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(broken_off(theirs.path()).await);
    let data = std::fs::read(snapshot::installing(theirs.path())).unwrap();
    let sha256 = snapshot::digest(&snapshot::installing(theirs.path())).unwrap();
    let (_, state): (BTreeMap<String, String>, Option<Vec<u8>>) = decode(&data).unwrap();
    let applied: Applied = decode(&state.unwrap()).unwrap();
    let meta = crate::types::SnapshotMeta {
        last_log_id: applied.last,
        last_membership: applied.membership,
        snapshot_id: "theirs".to_owned(),
    };
    let log = LogStore::create(&own.path().join("raft.db"), 2).unwrap();
    let map = Shared::default();
    let node = Node::start(log, map.clone(), Alone, own.path().into(), FEW).unwrap();
    // It has given its vote to another node, in a later term than the first leader's.
    let asked = openraft::raft::VoteRequest::new(Vote::new(3, 9), None);
    node.handle(&encode(&Request::Vote(asked))).await;
    let piece = |term| SnapshotPiece {
        vote: Vote::new_committed(term, 1),
        meta: meta.clone(),
        offset: 0,
        data: data.clone(),
        done: true,
        sha256: sha256.clone(),
    };
    let leftovers = || std::fs::read_dir(own.path()).unwrap().flatten();
    let is_there = || leftovers().any(|f| f.file_name().to_string_lossy().starts_with("snapshot."));
    node.handle(&encode(&Request::Piece(piece(1)))).await;
    // The first leader never asks what became of it.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while is_there() {
        assert!(std::time::Instant::now() < deadline, "it is not refused");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(map.0.lock().unwrap().rows.is_empty());
    let answer = taken_over(&node, || piece(4)).await;
    assert_eq!(answer.vote, Vote::new_committed(4, 1));
    assert_eq!(map.0.lock().unwrap().rows.len(), 20);
}

#[test]
fn a_newer_raft_db_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raft.db");
    drop(LogStore::create(&path, 1).unwrap());
    let c = rusqlite::Connection::open(&path).unwrap();
    c.pragma_update(None, "user_version", 99).unwrap();
    drop(c);
    let Err(e) = LogStore::open(&path) else { panic!("opened") };
    assert!(e.to_string().contains("raft.db") && e.to_string().contains("99"), "{e}");
}
