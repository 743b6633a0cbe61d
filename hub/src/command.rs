//! The replicated commands and their replies: one version byte, then MessagePack.
//!
//! Everything a command decides on stands in it: the proposer stamps time and ids (A1).

use barque_bundle::header::{Header, InTransit};
use barque_bundle::wire::{Column, Role, SpokeReport};
use barque_bundle::{
    BundleId, FilePath, HubEpoch, HubId, KeyId, PublicKey, Ranges, SeriesId, Sha256Digest, SpokeId,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The newest command version that this program applies; what it proposes has the lowest version
/// that knows it. Version 2 added `Describe`, version 3 imports, version 4 nodes.
pub const VERSION: u8 = 4;
/// Most operations of one batch.
pub const BATCH_OPERATIONS_MAX: usize = 1_000;
/// Most bytes of one batch, before the fields that stand once.
pub const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A command and the proposer's time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope {
    pub at: Timestamp,
    pub command: Command,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    Init(Init),
    AddSpoke(AddSpoke),
    Enroll(Enroll),
    SetSpoke(SetSpoke),
    AddToken(AddToken),
    RemoveToken {
        name: String,
    },
    RaiseStageFloor {
        node_id: u64,
        floor: u64,
    },
    Batch(Batch),
    Describe(Describe),
    ClaimImport(ClaimImport),
    RenewClaim {
        number: u64,
    },
    ReleaseClaim {
        number: u64,
    },
    /// A node that starts holds no claim of before.
    DropClaims {
        node_id: u64,
        before_start: u64,
    },
    RecordImport(RecordImport),
    ApproveSpoke(ApproveSpoke),
    InviteNode(InviteNode),
    JoinNode(JoinNode),
    NodeUp(NodeUp),
    SetNode(SetNode),
    /// A page of the copies of a removed node counts no more.
    ForgetCopies {
        node_id: u64,
    },
    /// The hub's most nodes are gone for good; this one goes on alone, in a new life.
    Recover(Recover),
}

impl Command {
    /// The lowest version of the commands that has this one.
    pub fn version(&self) -> u8 {
        match self {
            Self::Describe(_) => 2,
            Self::Batch(batch) if !batch.is_of_version_1() => 3,
            Self::ClaimImport(_)
            | Self::RenewClaim { .. }
            | Self::ReleaseClaim { .. }
            | Self::DropClaims { .. }
            | Self::RecordImport(_)
            | Self::ApproveSpoke(_) => 3,
            Self::InviteNode(_)
            | Self::JoinNode(_)
            | Self::NodeUp(_)
            | Self::SetNode(_)
            | Self::ForgetCopies { .. }
            | Self::Recover(_) => 4,
            _ => 1,
        }
    }

    /// Whether it may change who the nodes are.
    pub fn changes_nodes(&self) -> bool {
        matches!(
            self,
            Self::Init(_)
                | Self::JoinNode(_)
                | Self::NodeUp(_)
                | Self::SetNode(_)
                | Self::Recover(_)
        )
    }

    /// Whether a repeat of it is answered as it was the first time, so that one whose answer was
    /// lost may simply be proposed again (D2, D4). A token that is gone is said to be unknown.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self, Self::RemoveToken { .. })
    }

    /// Whether it may register a file.
    pub fn registers(&self) -> bool {
        let is_register = |op: &Operation| matches!(op, Operation::Register(_));
        matches!(self, Self::Batch(batch) if batch.operations.iter().any(is_register))
    }
}

/// The first command of a manifest: who this hub is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Init {
    pub hub_id: HubId,
    pub hub_epoch: HubEpoch,
    pub node_id: u64,
    pub node_key: PublicKey,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddSpoke {
    pub spoke_id: SpokeId,
    /// SHA-256 of the one-time secret.
    pub secret_hash: Sha256Digest,
    pub expires_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Enroll {
    pub spoke_id: SpokeId,
    pub secret_hash: Sha256Digest,
    pub public_key: PublicKey,
}

/// An operator's word on a spoke; its files stay whatever it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetSpoke {
    pub spoke_id: SpokeId,
    pub to: SpokeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpokeState {
    /// It may call again, if it has a key.
    Enabled,
    /// It may not call or write; an operator can undo it.
    Disabled,
    /// The same for good: its keys are revoked, and its name is not given out again.
    Removed,
}

/// A node asks to be the one that imports a bundle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimImport {
    pub spoke_id: SpokeId,
    pub bundle_id: BundleId,
    pub node_id: u64,
    /// Which start of the node this is.
    pub start_no: u64,
    /// A claim that was not seen renewed for too long, to be taken over.
    pub take_over: Option<u64>,
}

/// A bundle is imported to its end: it is not taken again while every entry stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordImport {
    /// The claim under which it was imported; it ends with this.
    pub claim: u64,
    pub spoke_id: SpokeId,
    pub bundle_id: BundleId,
    pub node_id: u64,
    pub label: Option<String>,
    pub created_at: Timestamp,
    pub counts: ImportCounts,
    /// The bundles that were under way when this one was made.
    pub in_transit: Vec<InTransit>,
    /// What the header says of the spoke's numbers.
    pub series: SeriesId,
    pub seq_head: u64,
    pub as_of: Option<Timestamp>,
    pub voids: Ranges,
    pub replaces: Option<SeriesId>,
}

/// What an import came to, in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportCounts {
    pub files: u64,
    pub bytes: u64,
    pub committed: u64,
    pub already_present: u64,
    pub conflicts: u64,
    pub refused: u64,
    pub removed: u64,
}

/// A spoke whose key came on a drive or a paper, announced and enrolled at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApproveSpoke {
    pub spoke_id: SpokeId,
    pub public_key: PublicKey,
}

/// One node may join with a secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InviteNode {
    /// SHA-256 of the one-use secret.
    pub secret_hash: Sha256Digest,
    /// False for a node that reads along for good.
    pub votes: bool,
    pub expires_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinNode {
    pub secret_hash: Sha256Digest,
    pub node_id: u64,
    pub public_key: PublicKey,
}

/// What a node says of itself when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUp {
    pub node_id: u64,
    /// Where other nodes reach it.
    pub address: Option<String>,
    pub url: String,
    pub name: String,
    /// The newest command version that it applies.
    pub level: u8,
    pub imports: bool,
}

/// An operator's word on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetNode {
    pub node_id: u64,
    pub to: NodeState,
    /// Files whose only copy is on it are given up.
    pub abandon: bool,
}

/// Never proposed: the first command of a life that one node begins alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recover {
    pub node_id: u64,
    pub hub_epoch: HubEpoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// Its key is known, it was never up.
    Joining,
    Active,
    /// It takes nothing new and does not vote.
    Draining,
    /// It is no node any more, for good.
    Removed,
}

impl NodeState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Removed => "removed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let all = [Self::Joining, Self::Active, Self::Draining, Self::Removed];
        all.into_iter().find(|s| s.as_str() == text)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AddToken {
    pub name: String,
    pub role: Role,
    /// SHA-256 of the bearer token.
    pub hash: Sha256Digest,
}

/// Operations that go out together; what is common to a bundle stands once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    pub bundles: Vec<BundleRef>,
    pub operations: Vec<Operation>,
}

impl BundleRef {
    /// A bundle's part, of a header that was verified.
    pub fn of(header: &Header, bytes: Vec<u8>, sig: Vec<u8>, claim: Option<u64>) -> Self {
        Self {
            bundle_id: header.bundle_id,
            spoke_id: header.spoke_id.clone(),
            key_id: header.key_id.clone(),
            series: header.series,
            header: bytes,
            sig,
            claim,
        }
    }
}

impl Batch {
    fn is_of_version_1(&self) -> bool {
        let states_drives =
            |op: &Operation| matches!(op, Operation::CheckIn(c) if !c.in_transit.is_empty());
        self.bundles.iter().all(|b| b.claim.is_none()) && !self.operations.iter().any(states_drives)
    }
}

/// A bundle's part of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleRef {
    pub bundle_id: BundleId,
    pub spoke_id: SpokeId,
    pub key_id: KeyId,
    pub series: SeriesId,
    #[serde(with = "bytes_form")]
    pub header: Vec<u8>,
    #[serde(with = "bytes_form")]
    pub sig: Vec<u8>,
    /// The claim of the import that it comes by; none on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Operation {
    Register(Register),
    /// A number whose file is answered without a row (refused).
    Answer {
        bundle: u32,
        seq: u64,
    },
    CheckIn(CheckIn),
}

/// One file; `bundle` is an index into the batch's bundles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Register {
    pub bundle: u32,
    pub path: FilePath,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    pub seq: u64,
    pub modified_at: Timestamp,
    /// The node that staged and synced the bytes; none when the manifest was thought to know them.
    pub holder: Option<Holder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub node_id: u64,
    pub stage_no: u64,
}

/// What the footers of landed files say; each schema stands once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Describe {
    pub schemas: Vec<SchemaColumns>,
    pub files: Vec<Described>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaColumns {
    pub schema_id: Sha256Digest,
    pub columns: Vec<Column>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Described {
    /// Landed name; with `sha256` it says which content was looked at.
    pub landed: String,
    pub sha256: Sha256Digest,
    pub facts: Footer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Footer {
    Read { rows: u64, row_groups: u64, schema_id: Sha256Digest },
    Unread(String),
}

/// What a spoke says of itself, and the numbers that this answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckIn {
    pub spoke_id: SpokeId,
    pub key_id: KeyId,
    pub series: SeriesId,
    pub seq_head: u64,
    pub as_of: Option<Timestamp>,
    pub voids: Ranges,
    pub replaces: Option<SeriesId>,
    pub answered: Ranges,
    pub report: SpokeReport,
    /// Bundles that are on drives under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_transit: Vec<InTransit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Batch(Vec<OperationReply>),
    /// The command changed nothing, for this reason.
    Refused(CommandRefusal),
    /// Measurements that got a schema beside one they had.
    Described(Vec<SchemaChange>),
    Claimed {
        number: u64,
    },
    /// Another import has the bundle.
    ClaimHeld {
        number: u64,
        node_id: u64,
        claimed_at: Timestamp,
    },
}

/// The first file that brought a further schema to a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaChange {
    pub database: String,
    pub measurement: String,
    pub landed: String,
    pub schema_id: Sha256Digest,
    /// The schema that most files had so far.
    pub before: Sha256Digest,
}

/// Why `apply` refused; all of these are the caller's to mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandRefusal {
    NameTaken,
    UnknownToken,
    TokenUsed,
    TokenExpired,
    KeyInUse,
    TokenNameTaken,
    NoSuchToken,
    NoSuchSpoke,
    SpokeRemoved,
    ClaimLost,
    NoSuchNode,
    NodeRemoved,
    /// Nothing could be agreed on without it.
    LastNode,
    /// So many files have their only copy on the node.
    HoldsFiles {
        files: u64,
    },
    /// Another node says that it is there.
    AddressInUse {
        node_id: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperationReply {
    Registered {
        position: u64,
        copies: u32,
    },
    AlreadyPresent {
        position: u64,
        copies: u32,
    },
    Conflict {
        theirs: Sha256Digest,
    },
    Removed,
    /// No copy stands behind it any more; the file has to come again.
    Unmet,
    /// The spoke or its key is not allowed to write.
    Dead,
    /// Another import has taken the bundle over.
    Fenced,
    Done,
    CheckedIn {
        seen: u64,
        recorded: bool,
        /// The series at the end of those that replaced this one.
        #[serde(default)]
        forked: Option<String>,
    },
}

/// The bytes of a command that Raft carries.
pub fn encode(envelope: &Envelope) -> Vec<u8> {
    versioned(envelope.command.version(), envelope)
}

/// The bytes of a reply that Raft carries.
pub fn encode_reply(reply: &Reply) -> Vec<u8> {
    let version = match reply {
        Reply::Described(_) => 2,
        Reply::Claimed { .. } | Reply::ClaimHeld { .. } => 3,
        Reply::Refused(CommandRefusal::ClaimLost) => 3,
        Reply::Refused(
            CommandRefusal::NoSuchNode
            | CommandRefusal::NodeRemoved
            | CommandRefusal::LastNode
            | CommandRefusal::HoldsFiles { .. }
            | CommandRefusal::AddressInUse { .. },
        ) => 4,
        Reply::Batch(replies) if replies.contains(&OperationReply::Fenced) => 3,
        _ => 1,
    };
    versioned(version, reply)
}

fn versioned<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    let mut out = vec![version];
    rmp_serde::encode::write(&mut out, value).expect("commands hold only values that serde writes");
    out
}

/// The value of bytes that [`encode`] or [`encode_reply`] made; an unknown version stops the node rather than skips.
pub fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match bytes.split_first() {
        Some((1..=VERSION, body)) => {
            rmp_serde::from_slice(body).map_err(|e| Error::Malformed(e.to_string()))
        }
        Some((&found, _)) => Err(Error::CommandVersion { found, known: VERSION }),
        None => Err(Error::Malformed("an empty command".to_owned())),
    }
}

mod bytes_form {
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, v: &[u8]) -> Result<Vec<u8>, E> {
                Ok(v.to_vec())
            }
            fn visit_byte_buf<E>(self, v: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(v)
            }
        }
        deserializer.deserialize_byte_buf(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_an_unknown_version_stops_rather_than_skips() {
        let mut bytes = encode_reply(&Reply::Done);
        assert_eq!(decode::<Reply>(&bytes).unwrap(), Reply::Done);
        // What an older program knows keeps its older version.
        assert_eq!(bytes[0], 1);
        bytes[0] = VERSION + 1;
        assert!(matches!(decode::<Reply>(&bytes), Err(Error::CommandVersion { .. })));
        assert!(decode::<Reply>(&[]).is_err());
    }
}
