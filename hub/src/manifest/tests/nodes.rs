//! Many nodes: invited, joined, up, removed; claims of imports and their fence.

use super::*;
use crate::command::{
    ClaimImport, ImportCounts, InviteNode, JoinNode, NodeState, NodeUp, RecordImport, Recover,
    SetNode,
};

const OTHER: u64 = 9;
const PATH: &str = "d/m/f.parquet";

fn up(node_id: u64, address: &str) -> Command {
    Command::NodeUp(NodeUp {
        node_id,
        address: Some(address.to_owned()),
        url: format!("https://{address}"),
        name: "box".to_owned(),
        level: command::VERSION,
        imports: true,
    })
}

fn join(node_id: u64, secret: u8, by: &str) -> Command {
    let public_key = key(by).public();
    Command::JoinNode(JoinNode { secret_hash: digest(secret), node_id, public_key })
}

fn set(node_id: u64, to: NodeState, abandon: bool) -> Command {
    Command::SetNode(SetNode { node_id, to, abandon })
}

fn refused(why: CommandRefusal) -> Reply {
    Reply::Refused(why)
}

/// A manifest with a second node that is up.
fn two() -> Bench {
    let mut b = Bench::with_spoke("s");
    let expires_at = NOW.plus_ms(1000);
    let invite = InviteNode { secret_hash: digest(1), votes: true, expires_at };
    b.apply(Command::InviteNode(invite));
    assert_eq!(b.apply(join(OTHER, 1, "other")), Reply::Done);
    assert_eq!(b.apply(up(OTHER, "10.0.0.2:1")), Reply::Done);
    b
}

fn state(b: &Bench, node_id: u64) -> NodeState {
    query::nodes(&b.manifest.connection).unwrap()[&node_id].state
}

#[test]
fn a_node_joins_once_with_a_token_and_the_same_one_again() {
    let mut b = Bench::new();
    let expires_at = NOW.plus_ms(1000);
    let invite = |secret, votes| {
        Command::InviteNode(InviteNode { secret_hash: digest(secret), votes, expires_at })
    };
    b.apply(invite(1, true));
    b.apply(invite(2, false));
    assert_eq!(b.apply(join(OTHER, 3, "a")), refused(CommandRefusal::UnknownToken));
    let late = b.apply_at(join(OTHER, 1, "a"), NOW.plus_ms(1001));
    assert_eq!(late, refused(CommandRefusal::TokenExpired));
    assert_eq!(b.apply(join(OTHER, 1, "a")), Reply::Done);
    // Its answer was lost; another key, or another node, is another one.
    assert_eq!(b.apply(join(OTHER, 1, "a")), Reply::Done);
    assert_eq!(b.apply(join(OTHER, 1, "b")), refused(CommandRefusal::TokenUsed));
    assert_eq!(b.apply(join(11, 1, "a")), refused(CommandRefusal::TokenUsed));
    assert_eq!(b.apply(join(OTHER, 2, "c")), refused(CommandRefusal::KeyInUse));
    assert_eq!(state(&b, OTHER), NodeState::Joining);
    assert_eq!(b.apply(up(OTHER, "10.0.0.2:1")), Reply::Done);
    assert_eq!(state(&b, OTHER), NodeState::Active);
    b.apply(join(11, 2, "d"));
    // One of two nodes at one address is a mistake, whichever it is.
    let taken = CommandRefusal::AddressInUse { node_id: OTHER };
    assert_eq!(b.apply(up(11, "10.0.0.2:1")), refused(taken));
    assert_eq!(b.apply(up(12, "10.0.0.3:1")), refused(CommandRefusal::NoSuchNode));
    assert!(!query::nodes(&b.manifest.connection).unwrap()[&11].votes);
}

#[test]
fn a_removed_node_leaves_no_file_without_a_word_and_the_last_voter_stays() {
    let mut b = two();
    b.register("s", PATH, 1, 1);
    assert_eq!(
        b.apply(set(NODE, NodeState::Removed, false)),
        refused(CommandRefusal::HoldsFiles { files: 1 })
    );
    assert_eq!(
        b.apply(Command::ForgetCopies { node_id: NODE }),
        refused(CommandRefusal::NoSuchNode)
    );
    assert_eq!(b.apply(set(NODE, NodeState::Removed, true)), Reply::Done);
    assert_eq!(b.apply(set(OTHER, NodeState::Draining, false)), refused(CommandRefusal::LastNode));
    let row =
        |b: &Bench| query::lookup(&b.manifest.connection, "s/d/m/f.parquet").unwrap().unwrap();
    assert_eq!(row(&b).state, query::FileState::Held);
    b.apply(Command::ForgetCopies { node_id: NODE });
    assert_eq!((row(&b).state, row(&b).copies), (query::FileState::Lost, 0));
    assert!(!query::holds_any(&b.manifest.connection, NODE).unwrap());
    // Its spoke is asked for it, and brings it to the other node.
    let wanted = query::wanted(&b.manifest.connection, &spoke("s"), 10).unwrap();
    assert_eq!(wanted.len(), 1);
    let holder = Some(Holder { node_id: OTHER, stage_no: 1 });
    let again = b.register_by("s", PATH, 1, 2, holder);
    assert!(matches!(again, OperationReply::AlreadyPresent { copies: 1, .. }), "{again:?}");
    assert_eq!(row(&b).state, query::FileState::Held);
    assert_eq!(b.apply(up(NODE, "10.0.0.1:1")), refused(CommandRefusal::NodeRemoved));
    assert_eq!(b.apply(set(NODE, NodeState::Active, false)), refused(CommandRefusal::NodeRemoved));
}

fn claim(node_id: u64, take_over: Option<u64>) -> Command {
    Command::ClaimImport(ClaimImport {
        spoke_id: spoke("s"),
        bundle_id: bundle_ref("s", 1).bundle_id,
        node_id,
        start_no: 1,
        take_over,
    })
}

fn record(claim: u64, node_id: u64) -> Command {
    Command::RecordImport(RecordImport {
        claim,
        spoke_id: spoke("s"),
        bundle_id: bundle_ref("s", 1).bundle_id,
        node_id,
        label: None,
        created_at: NOW,
        counts: ImportCounts { files: 1, committed: 1, ..ImportCounts::default() },
        in_transit: vec![],
        series: series(1),
        seq_head: 1,
        as_of: None,
        voids: Ranges::default(),
        replaces: None,
    })
}

#[test]
fn a_claim_that_was_taken_over_fences_its_late_batch_and_its_record() {
    let mut b = two();
    assert_eq!(b.apply(claim(NODE, None)), Reply::Claimed { number: 1 });
    let held = b.apply(claim(OTHER, None));
    assert_eq!(held, Reply::ClaimHeld { number: 1, node_id: NODE, claimed_at: NOW });
    assert_eq!(b.apply(claim(OTHER, Some(1))), Reply::Claimed { number: 2 });
    // Taken over by now: the same word again changes nothing.
    assert!(matches!(b.apply(claim(NODE, Some(1))), Reply::ClaimHeld { number: 2, .. }));
    let by = |b: &mut Bench, claim, node_id| {
        let bundle = BundleRef { claim: Some(claim), ..bundle_ref("s", 1) };
        let operations = vec![register(PATH, 1, 1, Some(Holder { node_id, stage_no: 5 }))];
        b.batch(Batch { bundles: vec![bundle], operations }).remove(0)
    };
    assert_eq!(by(&mut b, 1, NODE), OperationReply::Fenced);
    assert!(query::lookup(&b.manifest.connection, "s/d/m/f.parquet").unwrap().is_none());
    assert_eq!(b.apply(Command::RenewClaim { number: 1 }), refused(CommandRefusal::ClaimLost));
    assert!(matches!(by(&mut b, 2, OTHER), OperationReply::Registered { .. }));
    assert_eq!(b.apply(record(1, NODE)), refused(CommandRefusal::ClaimLost));
    assert_eq!(b.apply(record(2, OTHER)), Reply::Done);
    // Its answer was lost: it is recorded, once.
    assert_eq!(b.apply(record(2, OTHER)), Reply::Done);
    let line = |b: &Bench| {
        let id = bundle_ref("s", 1).bundle_id;
        query::imported(&b.manifest.connection, &spoke("s"), id).unwrap()
    };
    assert_eq!(line(&b).unwrap().node, format!("{OTHER:016x}"));
    assert_eq!(query::counter(&b.manifest.connection, "imports").unwrap(), 1);
}

#[test]
fn a_recovered_hub_has_one_node_and_another_epoch() {
    let mut b = two();
    b.apply(claim(OTHER, None));
    let hub_epoch = HubEpoch::new(NOW, [9; 10]);
    b.apply(Command::Recover(Recover { node_id: NODE, hub_epoch }));
    assert_eq!(query::hub(&b.manifest.connection).unwrap().unwrap().1, hub_epoch);
    assert_eq!((state(&b, NODE), state(&b, OTHER)), (NodeState::Active, NodeState::Removed));
    assert!(!query::has_claims(&b.manifest.connection).unwrap());
}

#[test]
fn manifests_of_one_history_have_one_digest_and_others_another() {
    let digest_of = |b: &Bench| {
        let d = query::manifest_digest(&b.manifest.connection).unwrap();
        (d.position, d.sha256)
    };
    let (mut a, mut b) = (two(), two());
    assert_eq!(digest_of(&a), digest_of(&b));
    // Raft's own position is no part of it.
    a.manifest.apply(&[], b"elsewhere").unwrap();
    assert_eq!(digest_of(&a), digest_of(&b));
    a.register("s", PATH, 1, 1);
    b.register("s", PATH, 2, 1);
    assert_eq!(digest_of(&a).0, digest_of(&b).0);
    assert_ne!(digest_of(&a).1, digest_of(&b).1);
}
