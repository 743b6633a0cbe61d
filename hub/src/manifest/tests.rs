use barque_bundle::wire::{Role, SpokeReport};
use barque_bundle::{
    BundleId, HubEpoch, HubId, KeyId, Ranges, SecretKey, SeriesId, Sha256Digest, SpokeId, Timestamp,
};
use proptest::prelude::*;

use super::*;
use crate::command::{
    AddSpoke, AddToken, Batch, BundleRef, CheckIn, Command, CommandRefusal, Enroll, Holder, Init,
    Operation, OperationReply, Register, Reply, SetSpoke, SpokeState,
};

mod counting;
mod footers;
mod nodes;

const NOW: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);
const NODE: u64 = 7;

struct Bench {
    manifest: Manifest,
    _dir: tempfile::TempDir,
    applied: u64,
}

fn key(spoke: &str) -> SecretKey {
    SecretKey::from_seed(*Sha256Digest::of(spoke.as_bytes()).as_bytes())
}

fn key_id(spoke: &str) -> KeyId {
    key(spoke).public().key_id()
}

fn spoke(name: &str) -> SpokeId {
    name.parse().unwrap()
}

fn series(n: u8) -> SeriesId {
    SeriesId::new(NOW, [n; 10])
}

fn digest(content: u8) -> Sha256Digest {
    Sha256Digest::of(&[content])
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manifest = Manifest::open(&dir.path().join("manifest.db")).unwrap();
        let mut bench = Self { manifest, _dir: dir, applied: 0 };
        bench.apply(Command::Init(Init {
            hub_id: HubId::new(NOW, [1; 10]),
            hub_epoch: HubEpoch::new(NOW, [2; 10]),
            node_id: NODE,
            node_key: key("node").public(),
        }));
        bench
    }

    fn with_spoke(name: &str) -> Self {
        let mut bench = Self::new();
        bench.enroll(name);
        bench
    }

    fn enroll(&mut self, name: &str) {
        let secret_hash = Sha256Digest::of(name.as_bytes());
        let expires_at = NOW.plus_ms(1000);
        self.apply(Command::AddSpoke(AddSpoke { spoke_id: spoke(name), secret_hash, expires_at }));
        let public_key = key(name).public();
        let enroll = Enroll { spoke_id: spoke(name), secret_hash, public_key };
        assert_eq!(self.apply(Command::Enroll(enroll)), Reply::Done);
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.apply_at(command, NOW)
    }

    fn apply_at(&mut self, command: Command, at: Timestamp) -> Reply {
        let bytes = command::encode(&Envelope { at, command });
        self.applied += 1;
        let state = self.applied.to_le_bytes();
        let replies = self.manifest.apply(&[&bytes], &state).unwrap();
        command::decode(&replies[0]).unwrap()
    }

    fn batch(&mut self, batch: Batch) -> Vec<OperationReply> {
        match self.apply(Command::Batch(batch)) {
            Reply::Batch(replies) => replies,
            other => panic!("{other:?}"),
        }
    }

    /// One file of a bundle of one.
    fn register(&mut self, name: &str, path: &str, content: u8, bundle: u8) -> OperationReply {
        let holder = Some(Holder { node_id: NODE, stage_no: 5 });
        self.register_by(name, path, content, bundle, holder)
    }

    fn register_by(
        &mut self,
        name: &str,
        path: &str,
        content: u8,
        bundle: u8,
        holder: Option<Holder>,
    ) -> OperationReply {
        let operations = vec![register(path, content, 1, holder)];
        self.batch(Batch { bundles: vec![bundle_ref(name, bundle)], operations }).remove(0)
    }

    /// Everything that the manifest holds, as text.
    fn dump(&self) -> String {
        let c = &self.manifest.connection;
        let tables: Vec<String> = c
            .prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            .unwrap()
            .query_map([], |r| r.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let mut out = String::new();
        for table in tables {
            let mut s = c.prepare(&format!("SELECT * FROM {table}")).unwrap();
            let columns = s.column_count();
            let mut rows = s.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let values: Vec<_> = (0..columns).map(|i| row.get_ref(i).unwrap()).collect();
                out.push_str(&format!("{table}: {values:?}\n"));
            }
        }
        out
    }
}

fn bundle_ref(name: &str, bundle: u8) -> BundleRef {
    BundleRef {
        bundle_id: BundleId::new(NOW, [bundle; 10]),
        spoke_id: spoke(name),
        key_id: key_id(name),
        series: series(1),
        header: vec![1],
        sig: vec![2],
        claim: None,
    }
}

fn register(path: &str, content: u8, seq: u64, holder: Option<Holder>) -> Operation {
    Operation::Register(Register {
        bundle: 0,
        path: path.parse().unwrap(),
        sha256: digest(content),
        size_bytes: 1,
        seq,
        modified_at: NOW,
        holder,
    })
}

fn check_in(name: &str, series_no: u8, seq_head: u64, answered: Vec<u64>) -> CheckIn {
    CheckIn {
        spoke_id: spoke(name),
        key_id: key_id(name),
        series: series(series_no),
        seq_head,
        as_of: None,
        voids: Ranges::default(),
        replaces: None,
        answered: Ranges::from_numbers(answered),
        report: SpokeReport::default(),
        in_transit: Vec::new(),
    }
}

const PATH: &str = "d/m/2024/03/31/02/a.parquet";

#[test]
fn the_first_content_of_a_path_wins_and_stays() {
    let mut b = Bench::with_spoke("s");
    let first = b.register("s", PATH, 1, 1);
    assert_eq!(first, OperationReply::Registered { position: 1, copies: 1 });
    // A retry of the same bundle hears the same again; another bundle hears that it is there.
    assert_eq!(b.register("s", PATH, 1, 1), first);
    let again = OperationReply::AlreadyPresent { position: 1, copies: 1 };
    assert_eq!(b.register("s", PATH, 1, 2), again);
    assert_eq!(b.register("s", PATH, 2, 3), OperationReply::Conflict { theirs: digest(1) });
    assert_eq!(b.register("s", PATH, 1, 4), again);
    let row = query::lookup(&b.manifest.connection, &format!("s/{PATH}")).unwrap().unwrap();
    assert_eq!((row.sha256, row.position), (digest(1), 1));
}

#[test]
fn two_spokes_have_the_same_path_apart() {
    let mut b = Bench::with_spoke("s");
    b.enroll("t");
    assert!(matches!(b.register("s", PATH, 1, 1), OperationReply::Registered { .. }));
    assert!(matches!(b.register("t", PATH, 2, 2), OperationReply::Registered { .. }));
}

#[test]
fn a_second_node_that_staged_the_bytes_becomes_a_holder() {
    let mut b = Bench::with_spoke("s");
    b.register("s", PATH, 1, 1);
    b.manifest
        .connection
        .execute("INSERT INTO nodes (node_id, public_key, added_at) VALUES (8, '', 0)", [])
        .unwrap();
    let other = Some(Holder { node_id: 8, stage_no: 1 });
    let merged = OperationReply::AlreadyPresent { position: 2, copies: 2 };
    assert_eq!(b.register_by("s", PATH, 1, 2, other), merged);
    assert_eq!(b.register_by("s", PATH, 1, 2, other), merged);
    let mine = query::changes_for_node(&b.manifest.connection, 8, 0, 10).unwrap();
    assert_eq!(mine.iter().map(|r| (r.cursor, r.stage_no)).collect::<Vec<_>>(), [(1, 1), (2, 1)]);
}

#[test]
fn a_copy_below_its_nodes_floor_counts_for_nothing() {
    let mut b = Bench::with_spoke("s");
    b.apply(Command::RaiseStageFloor { node_id: NODE, floor: 5 });
    assert_eq!(b.register("s", PATH, 1, 1), OperationReply::Unmet);
    b.apply(Command::RaiseStageFloor { node_id: NODE, floor: 4 });
    assert_eq!(b.register("s", PATH, 1, 1), OperationReply::Unmet);
    let above = Some(Holder { node_id: NODE, stage_no: 6 });
    assert!(matches!(b.register_by("s", PATH, 1, 1, above), OperationReply::Registered { .. }));
    let stranger = Some(Holder { node_id: 99, stage_no: 6 });
    assert_eq!(b.register_by("s", "d/m/b.parquet", 1, 1, stranger), OperationReply::Unmet);
    assert_eq!(b.register_by("s", "d/m/b.parquet", 1, 1, None), OperationReply::Unmet);
}

#[test]
fn a_key_that_is_not_live_writes_nothing() {
    let mut b = Bench::with_spoke("s");
    b.enroll("t");
    let mut mixed = bundle_ref("s", 1);
    mixed.key_id = key_id("t");
    let holder = Some(Holder { node_id: NODE, stage_no: 5 });
    let batch = |bundle| Batch {
        bundles: vec![bundle],
        operations: vec![register(PATH, 1, 1, holder), Operation::Answer { bundle: 0, seq: 1 }],
    };
    assert_eq!(b.batch(batch(mixed)), [OperationReply::Dead, OperationReply::Dead]);
    let set = |to| Command::SetSpoke(SetSpoke { spoke_id: spoke("s"), to });
    assert_eq!(b.apply(set(SpokeState::Disabled)), Reply::Done);
    assert_eq!(b.batch(batch(bundle_ref("s", 1))), [OperationReply::Dead, OperationReply::Dead]);
    let late = Batch {
        bundles: vec![],
        operations: vec![Operation::CheckIn(check_in("s", 1, 1, vec![]))],
    };
    assert_eq!(b.batch(late), [OperationReply::Dead]);
    assert_eq!(query::counter(&b.manifest.connection, "position").unwrap(), 0);
}

#[test]
fn a_one_time_token_enrolls_one_key_once() {
    let mut b = Bench::new();
    let secret_hash = digest(1);
    let add = |name: &str| {
        Command::AddSpoke(AddSpoke { spoke_id: spoke(name), secret_hash, expires_at: NOW })
    };
    assert_eq!(b.apply(add("Rocket")), Reply::Done);
    assert_eq!(b.apply(add("rOCKET")), Reply::Refused(CommandRefusal::NameTaken));
    let enroll = |name: &str, hash, who: &str| {
        Command::Enroll(Enroll {
            spoke_id: spoke(name),
            secret_hash: hash,
            public_key: key(who).public(),
        })
    };
    let refused = Reply::Refused;
    assert_eq!(b.apply(enroll("Rocket", digest(2), "a")), refused(CommandRefusal::UnknownToken));
    assert_eq!(b.apply(enroll("other", secret_hash, "a")), refused(CommandRefusal::UnknownToken));
    let late = NOW.plus_ms(1);
    let expired = refused(CommandRefusal::TokenExpired);
    assert_eq!(b.apply_at(enroll("Rocket", secret_hash, "a"), late), expired);
    assert_eq!(b.apply(enroll("Rocket", secret_hash, "a")), Reply::Done);
    assert_eq!(b.apply_at(enroll("Rocket", secret_hash, "a"), late), Reply::Done);
    assert_eq!(b.apply(enroll("Rocket", secret_hash, "b")), refused(CommandRefusal::TokenUsed));
}

#[test]
fn bearer_tokens_are_found_by_hash_and_removed_by_name() {
    let mut b = Bench::new();
    let add = |hash| Command::AddToken(AddToken { name: "me".into(), role: Role::Reader, hash });
    assert_eq!(b.apply(add(digest(1))), Reply::Done);
    // The same again had its answer lost; another one of this name is another one.
    assert_eq!(b.apply(add(digest(1))), Reply::Done);
    assert_eq!(b.apply(add(digest(2))), Reply::Refused(CommandRefusal::TokenNameTaken));
    let c = &b.manifest.connection;
    assert_eq!(query::token_role(c, &digest(1)).unwrap(), Some(Role::Reader));
    assert_eq!(query::token_role(c, &digest(2)).unwrap(), None);
    let remove = || Command::RemoveToken { name: "me".into() };
    assert_eq!(b.apply(remove()), Reply::Done);
    assert_eq!(b.apply(remove()), Reply::Refused(CommandRefusal::NoSuchToken));
}

#[test]
fn a_ledger_that_went_back_is_answered_and_not_recorded() {
    let mut b = Bench::with_spoke("s");
    let mut send = |c: CheckIn| {
        let batch = Batch { bundles: vec![], operations: vec![Operation::CheckIn(c)] };
        b.batch(batch).remove(0)
    };
    let checked = |seen, recorded| OperationReply::CheckedIn { seen, recorded, forked: None };
    assert_eq!(send(check_in("s", 1, 10, vec![1])), checked(0, true));
    assert_eq!(send(check_in("s", 1, 9, vec![2])), checked(10, false));
    let replacing = CheckIn { replaces: Some(series(1)), ..check_in("s", 2, 3, vec![]) };
    assert_eq!(send(replacing), checked(0, true));
    // Whoever goes on with the series that was replaced hears which one did that.
    let forked = Some(series(2).to_string());
    let told = OperationReply::CheckedIn { seen: 10, recorded: true, forked };
    assert_eq!(send(check_in("s", 1, 11, vec![])), told);
    let forked: i64 = b
        .manifest
        .connection
        .query_row("SELECT count(*) FROM series WHERE forked > 0", [], |r| r.get(0))
        .unwrap();
    assert_eq!(forked, 1);
    let answered: Vec<(i64, i64)> = b
        .manifest
        .connection
        .prepare("SELECT lo, hi FROM answered")
        .unwrap()
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(answered, [(1, 1)]);
}

#[test]
fn a_snapshot_is_the_manifest_as_it_was_when_it_was_taken() {
    let mut b = Bench::with_spoke("s");
    b.register("s", PATH, 1, 1);
    let before = b.dump();
    let view = b.manifest.view().unwrap();
    b.register("s", "d/m/later.parquet", 2, 2);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("snapshot");
    view.copy_to(&file).unwrap();
    let mut other = Bench::new();
    let mut head = other.manifest.watch();
    other.manifest.install(&file).unwrap();
    assert_eq!(other.dump(), before);
    assert_eq!(*head.borrow_and_update(), 1);
    b.manifest.checkpoint().unwrap();
}

#[test]
fn a_newer_manifest_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest.db");
    drop(Manifest::open(&path).unwrap());
    let c = Connection::open(&path).unwrap();
    c.pragma_update(None, "user_version", 99).unwrap();
    let Err(e) = Manifest::open(&path) else { panic!("opened") };
    assert!(e.to_string().contains("manifest.db") && e.to_string().contains("99"), "{e}");
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Act {
    Register { path: u8, content: u8, bundle: u8, seq: u64 },
    CheckIn { head: u64, answered: Vec<u64> },
    Floor(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0u8..4, 0u8..2, 0u8..5, 1u64..40).prop_map(|(path, content, bundle, seq)| Act::Register {
            path,
            content,
            bundle,
            seq
        }),
        (0u64..50, proptest::collection::vec(1u64..60, 0..12))
            .prop_map(|(head, answered)| Act::CheckIn { head, answered }),
        (0u64..8).prop_map(Act::Floor),
    ]
}

impl Act {
    fn command(&self) -> Command {
        match self {
            Self::Register { path, content, bundle, seq } => {
                let holder = Some(Holder { node_id: NODE, stage_no: 6 });
                Command::Batch(Batch {
                    bundles: vec![bundle_ref("s", *bundle)],
                    operations: vec![register(
                        &format!("d/m/{path}.parquet"),
                        *content,
                        *seq,
                        holder,
                    )],
                })
            }
            Self::CheckIn { head, answered } => Command::Batch(Batch {
                bundles: vec![],
                operations: vec![Operation::CheckIn(check_in("s", 1, *head, answered.clone()))],
            }),
            Self::Floor(floor) => Command::RaiseStageFloor { node_id: NODE, floor: *floor },
        }
    }
}

fn answered_numbers(b: &Bench) -> Vec<u64> {
    let mut s = b.manifest.connection.prepare("SELECT lo, hi FROM answered ORDER BY lo").unwrap();
    let ranges: Vec<(u64, u64)> = s
        .query_map([], |r| Ok((r.get::<_, i64>(0)? as u64, r.get::<_, i64>(1)? as u64)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    for w in ranges.windows(2) {
        assert!(w[0].1 + 1 < w[1].0, "ranges touch: {ranges:?}");
    }
    ranges.into_iter().flat_map(|(lo, hi)| lo..=hi).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_same_commands_make_the_same_manifest(acts in proptest::collection::vec(act(), 0..30)) {
        let (mut a, mut b) = (Bench::with_spoke("s"), Bench::with_spoke("s"));
        for act in &acts {
            prop_assert_eq!(a.apply(act.command()), b.apply(act.command()));
        }
        prop_assert_eq!(a.dump(), b.dump());
    }

    #[test]
    fn a_redelivered_command_changes_no_file_and_no_position(acts in proptest::collection::vec(act(), 0..25)) {
        let mut b = Bench::with_spoke("s");
        for act in &acts {
            b.apply(act.command());
            let files = |b: &Bench| -> String {
                b.dump().lines().filter(|l| ["files", "changes", "holders", "counters", "answered"].iter().any(|t| l.starts_with(t))).collect()
            };
            let before = files(&b);
            b.apply(act.command());
            prop_assert_eq!(files(&b), before);
        }
    }

    #[test]
    fn a_path_never_changes_its_content(acts in proptest::collection::vec(act(), 0..40)) {
        let mut b = Bench::with_spoke("s");
        let mut first = std::collections::BTreeMap::new();
        for act in &acts {
            b.apply(act.command());
            for path in 0..4u8 {
                let row = query::lookup(&b.manifest.connection, &format!("s/d/m/{path}.parquet")).unwrap();
                if let Some(row) = row {
                    let seen = *first.entry(path).or_insert(row.sha256);
                    prop_assert_eq!(seen, row.sha256);
                }
            }
        }
    }

    #[test]
    fn answered_numbers_are_a_set_of_disjoint_ranges(pages in proptest::collection::vec(proptest::collection::vec(1u64..80, 0..20), 1..8)) {
        let mut b = Bench::with_spoke("s");
        let mut all = std::collections::BTreeSet::new();
        for page in pages {
            all.extend(page.iter().copied());
            b.batch(Batch { bundles: vec![], operations: vec![Operation::CheckIn(check_in("s", 1, 100, page))] });
            prop_assert_eq!(answered_numbers(&b), all.iter().copied().collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_manifest_of_the_first_version_is_brought_up_to_the_newest_schema() {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let old = Path::new(&here).join("../fixtures/folders/v1/hub/manifest.db");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest.db");
    std::fs::copy(old, &path).unwrap();
    let schema = |m: &Manifest| -> Vec<(String, String)> {
        let mut s = m
            .connection
            .prepare("SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY name")
            .unwrap();
        let rows = s.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    let migrated = Manifest::open(&path).unwrap();
    let fresh = Manifest::open(&dir.path().join("fresh.db")).unwrap();
    assert_eq!(schema(&migrated), schema(&fresh));
    assert_eq!(query::counter(&migrated.connection, "files").unwrap(), 4);
    assert!(barque_bundle::database::copy_name(&path, 1).exists());
}

#[test]
fn the_manifest_syncs_at_checkpoints_and_leans_on_the_log_between_them() {
    let b = Bench::new();
    let pragma = |name: &str| -> String {
        let c = &b.manifest.connection;
        c.query_row(&format!("PRAGMA {name}"), [], |r| {
            r.get::<_, String>(0).or_else(|_| r.get::<_, i64>(0).map(|n| n.to_string()))
        })
        .unwrap()
    };
    // 1 is NORMAL.
    assert_eq!((pragma("synchronous").as_str(), pragma("journal_mode").as_str()), ("1", "wal"));
}

#[test]
fn a_number_that_came_in_a_bundle_was_given_out() {
    let mut b = Bench::with_spoke("s");
    let holder = Some(Holder { node_id: NODE, stage_no: 5 });
    let operations = vec![register(PATH, 1, 5, holder)];
    b.batch(Batch { bundles: vec![bundle_ref("s", 1)], operations });
    // A ledger of before the bundle would give 2 to 5 out again: it has to open a new series.
    let back = Operation::CheckIn(check_in("s", 1, 1, vec![]));
    let replies = b.batch(Batch { bundles: vec![], operations: vec![back] });
    assert_eq!(replies, [OperationReply::CheckedIn { seen: 5, recorded: false, forked: None }]);
}
