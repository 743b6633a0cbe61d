//! The hub's signed answer: a head (`ack.json`, `ack.sig`) and one line a file (`outcomes.jsonl`).
//!
//! Only a receipt makes a file synced (invariant D5), so what is not verified here is nothing.

use std::io::{self, BufRead, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::{Hasher, Sha256Digest};
use crate::error::ErrorKind;
use crate::header::Signed;
use crate::id::{BundleId, HubEpoch, HubId, SpokeId};
use crate::key::{KeyError, NodeCertificate, PublicKey, SecretKey};
use crate::path::FilePath;
use crate::time::Timestamp;

/// The code of a refusal that ends once the hub's operator has acted: something foreign stands
/// where the file would land.
pub const LANDING_BLOCKED: &str = "landing_blocked";

const LABEL: &str = "barque-receipt-v2";
const VERSION: u32 = 2;

/// What became of one file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// New, durable and in the manifest.
    Registered,
    /// The hub has this content under this path.
    AlreadyPresent,
    /// The hub has other content under this path; a person has to act.
    Conflict,
    /// The hub had it and a person removed it there.
    Removed,
    /// The hub does not take it, by a rule that it names.
    Refused,
    /// The bytes that came were not the ones that were declared.
    Mismatch,
    /// The spoke took it back while sending.
    Withdrawn,
}

impl Outcome {
    pub const ALL: [Self; 7] = [
        Self::Registered,
        Self::AlreadyPresent,
        Self::Conflict,
        Self::Removed,
        Self::Refused,
        Self::Mismatch,
        Self::Withdrawn,
    ];

    /// Whether the hub holds the file after this.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Registered | Self::AlreadyPresent)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::AlreadyPresent => "already_present",
            Self::Conflict => "conflict",
            Self::Removed => "removed",
            Self::Refused => "refused",
            Self::Mismatch => "mismatch",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// One line of `outcomes.jsonl`; lines ascend by path bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutcomeLine {
    pub path: FilePath,
    pub sha256: Sha256Digest,
    pub outcome: Outcome,
    /// On how many nodes the file was durable when the receipt was made.
    pub copies: u32,
    /// The hub's digest when it is another (conflict).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub their_sha256: Option<Sha256Digest>,
    /// A stable word for why (refused).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// A sentence for a person (refused, mismatch).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl OutcomeLine {
    pub fn new(path: FilePath, sha256: Sha256Digest, outcome: Outcome, copies: u32) -> Self {
        Self { path, sha256, outcome, copies, their_sha256: None, code: None, detail: None }
    }
}

/// What a receipt answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    /// The bundle of this id.
    Bundle(BundleId),
    /// The reconcile request whose body has this SHA-256.
    Reconcile(Sha256Digest),
}

/// How many lines have each outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub registered: u64,
    pub already_present: u64,
    pub conflict: u64,
    pub removed: u64,
    pub refused: u64,
    pub mismatch: u64,
    pub withdrawn: u64,
}

impl Counts {
    pub fn of(lines: &[OutcomeLine]) -> Self {
        let mut counts = Self::default();
        lines.iter().for_each(|line| counts.add(line.outcome));
        counts
    }

    pub fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Registered => &mut self.registered,
            Outcome::AlreadyPresent => &mut self.already_present,
            Outcome::Conflict => &mut self.conflict,
            Outcome::Removed => &mut self.removed,
            Outcome::Refused => &mut self.refused,
            Outcome::Mismatch => &mut self.mismatch,
            Outcome::Withdrawn => &mut self.withdrawn,
        } += 1;
    }
}

/// A file that the hub asks for again: it knew it and has it no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wanted {
    pub path: FilePath,
    pub sha256: Sha256Digest,
}

/// The signed head of a receipt (`ack.json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub version: u32,
    pub answers: Answers,
    pub spoke_id: SpokeId,
    pub hub_id: HubId,
    pub hub_epoch: HubEpoch,
    /// The manifest position that covers every line.
    pub position: u64,
    /// The hub's time when it signed.
    pub received_at: Timestamp,
    pub counts: Counts,
    /// Who holds the files now; `hub` is the only word so far.
    pub custody: String,
    /// The smallest number of copies among the files held.
    pub copies: u32,
    #[serde(default)]
    pub wanted: Vec<Wanted>,
    /// SHA-256 of the exact bytes of `outcomes.jsonl`.
    pub outcomes_sha256: Sha256Digest,
    pub certificate: NodeCertificate,
}

/// The members of a head that the signer decides.
pub struct Draft {
    pub answers: Answers,
    pub spoke_id: SpokeId,
    pub hub_id: HubId,
    pub hub_epoch: HubEpoch,
    pub position: u64,
    pub received_at: Timestamp,
    pub wanted: Vec<Wanted>,
}

/// A receipt as it stands in JSON answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireReceipt {
    /// Base64 of the exact bytes of `ack.json`.
    pub ack: String,
    /// Base64 of the 64-byte signature.
    pub sig: String,
    /// The text of `outcomes.jsonl`.
    pub outcomes: String,
}

/// A receipt that was verified, with the exact bytes to keep.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub head: Head,
    pub lines: Vec<OutcomeLine>,
    pub ack: Vec<u8>,
    pub sig: Vec<u8>,
    pub outcomes: Vec<u8>,
}

/// Why a receipt is not one: the caller must treat it as no answer at all.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    #[error("the receipt is malformed: {0}")]
    Malformed(String),
    #[error("receipt version {0} is not known here")]
    Version(u32),
    #[error("the receipt answers something else: {0}")]
    OtherSubject(&'static str),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("the receipt cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("the outcomes are not the ones that were signed")]
    Outcomes,
}

impl ReceiptError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Key(_) => ErrorKind::Unauthenticated,
            Self::Unreadable(_) => ErrorKind::Unavailable,
            _ => ErrorKind::Corrupt,
        }
    }
}

/// What a receipt must be about to count.
pub struct Expected<'a> {
    pub roots: &'a [PublicKey],
    pub hub_id: HubId,
    pub spoke_id: &'a SpokeId,
    pub answers: Answers,
}

impl Receipt {
    /// A receipt over the lines (sorted here), signed by a node's own key.
    pub fn sign(
        draft: Draft,
        mut lines: Vec<OutcomeLine>,
        certificate: NodeCertificate,
        key: &SecretKey,
    ) -> Self {
        lines.sort_by(|a, b| a.path.cmp(&b.path));
        let mut outcomes = Outcomes::new(Vec::with_capacity(lines.len() * 200));
        for line in &lines {
            outcomes.add(line).expect("memory takes every line");
        }
        let (outcomes, summary) = outcomes.finish();
        let Signed { value: head, bytes: ack, sig } = summary.sign(draft, certificate, key);
        Self { head, lines, ack, sig, outcomes }
    }

    /// The verified receipt, or why it is none: signature, chain, subject and outcomes all hold.
    pub fn open(
        ack: Vec<u8>,
        sig: Vec<u8>,
        outcomes: Vec<u8>,
        expected: &Expected<'_>,
    ) -> Result<Self, ReceiptError> {
        let malformed = |e: serde_json::Error| ReceiptError::Malformed(e.to_string());
        let head = Head::open(&ack, &sig, expected.roots, expected.hub_id, expected.spoke_id)?;
        if head.answers != expected.answers {
            return Err(ReceiptError::OtherSubject("answers"));
        }
        if Sha256Digest::of(&outcomes) != head.outcomes_sha256 {
            return Err(ReceiptError::Outcomes);
        }
        let lines = from_jsonl(&outcomes).map_err(malformed)?;
        if lines.windows(2).any(|w| w[0].path >= w[1].path) || Counts::of(&lines) != head.counts {
            return Err(ReceiptError::Outcomes);
        }
        Ok(Self { head, lines, ack, sig, outcomes })
    }

    pub fn to_wire(&self) -> WireReceipt {
        WireReceipt {
            ack: BASE64.encode(&self.ack),
            sig: BASE64.encode(&self.sig),
            outcomes: String::from_utf8_lossy(&self.outcomes).into_owned(),
        }
    }

    /// [`Receipt::open`] of a receipt as it stands in a JSON answer.
    pub fn open_wire(wire: WireReceipt, expected: &Expected<'_>) -> Result<Self, ReceiptError> {
        let decode =
            |text: &str| BASE64.decode(text).map_err(|e| ReceiptError::Malformed(e.to_string()));
        let (ack, sig) = (decode(&wire.ack)?, decode(&wire.sig)?);
        Self::open(ack, sig, wire.outcomes.into_bytes(), expected)
    }
}

impl Head {
    /// The verified head of a receipt: signature, chain, hub and spoke hold. What it answers, and
    /// its outcomes, are the caller's to compare.
    pub fn open(
        ack: &[u8],
        sig: &[u8],
        roots: &[PublicKey],
        hub_id: HubId,
        spoke_id: &SpokeId,
    ) -> Result<Self, ReceiptError> {
        let head: Self =
            serde_json::from_slice(ack).map_err(|e| ReceiptError::Malformed(e.to_string()))?;
        if head.version != VERSION {
            return Err(ReceiptError::Version(head.version));
        }
        head.certificate.verify(roots, hub_id)?;
        let digest = Sha256Digest::of(ack).to_string();
        head.certificate.public_key.verify(LABEL, &[digest.as_bytes()], sig)?;
        if head.hub_id != hub_id {
            return Err(ReceiptError::OtherSubject("hub_id"));
        }
        if head.spoke_id != *spoke_id {
            return Err(ReceiptError::OtherSubject("spoke_id"));
        }
        Ok(head)
    }
}

/// Whether three files are one receipt, whoever signed it: what tells a torn one from a whole one.
pub fn is_whole(ack: &[u8], sig: &[u8], outcomes: impl BufRead) -> bool {
    let Ok(head) = serde_json::from_slice::<Head>(ack) else { return false };
    let digest = Sha256Digest::of(ack).to_string();
    let is_signed = head.certificate.public_key.verify(LABEL, &[digest.as_bytes()], sig).is_ok();
    let mut lines = OutcomeReader::new(outcomes);
    is_signed
        && loop {
            match lines.next_line(&head) {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        }
}

/// Writes `outcomes.jsonl` line by line, in path order, and adds up what the head says of it.
pub struct Outcomes<W> {
    out: W,
    hasher: Hasher,
    counts: Counts,
    /// Fewest copies of a file that is held.
    copies: Option<u32>,
}

/// What a head says of its outcomes.
pub struct Summary {
    pub counts: Counts,
    copies: u32,
    outcomes_sha256: Sha256Digest,
}

impl<W: Write> Outcomes<W> {
    pub fn new(out: W) -> Self {
        Self { out, hasher: Hasher::new(), counts: Counts::default(), copies: None }
    }

    pub fn add(&mut self, line: &OutcomeLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line).expect("a line has only string keys");
        text.push(b'\n');
        self.hasher.update(&text);
        self.counts.add(line.outcome);
        if line.outcome.is_held() {
            self.copies = Some(self.copies.map_or(line.copies, |c| c.min(line.copies)));
        }
        self.out.write_all(&text)
    }

    pub fn finish(self) -> (W, Summary) {
        let (copies, outcomes_sha256) = (self.copies.unwrap_or(0), self.hasher.finish());
        (self.out, Summary { counts: self.counts, copies, outcomes_sha256 })
    }
}

impl Summary {
    /// A head over these outcomes, signed by a node's own key: `ack.json` and `ack.sig`.
    pub fn sign(self, draft: Draft, certificate: NodeCertificate, key: &SecretKey) -> Signed<Head> {
        let head = Head {
            version: VERSION,
            answers: draft.answers,
            spoke_id: draft.spoke_id,
            hub_id: draft.hub_id,
            hub_epoch: draft.hub_epoch,
            position: draft.position,
            received_at: draft.received_at,
            counts: self.counts,
            custody: "hub".to_owned(),
            copies: self.copies,
            wanted: draft.wanted,
            outcomes_sha256: self.outcomes_sha256,
            certificate,
        };
        let bytes = serde_json::to_vec(&head).expect("a head has only string keys");
        let sig = key.sign(LABEL, &[Sha256Digest::of(&bytes).to_string().as_bytes()]).to_vec();
        Signed { value: head, bytes, sig }
    }
}

/// Reads `outcomes.jsonl` line by line in bounded memory; at its end it holds or not.
pub struct OutcomeReader<R> {
    reader: R,
    buffer: Vec<u8>,
    last: Option<FilePath>,
    hasher: Hasher,
    counts: Counts,
}

impl<R: BufRead> OutcomeReader<R> {
    pub fn new(reader: R) -> Self {
        let (hasher, counts) = (Hasher::new(), Counts::default());
        Self { reader, buffer: Vec::new(), last: None, hasher, counts }
    }

    /// The next line, lines ascending; `None` at the end, when all of them are those of the head.
    pub fn next_line(&mut self, head: &Head) -> Result<Option<OutcomeLine>, ReceiptError> {
        let malformed = |e: &dyn std::fmt::Display| ReceiptError::Malformed(e.to_string());
        self.buffer.clear();
        let limit = crate::entry::LINE_MAX_BYTES as u64;
        let read = io::Read::take(&mut self.reader, limit).read_until(b'\n', &mut self.buffer);
        if read.map_err(ReceiptError::Unreadable)? == 0 {
            let is_whole =
                self.hasher.finish() == head.outcomes_sha256 && self.counts == head.counts;
            return if is_whole { Ok(None) } else { Err(ReceiptError::Outcomes) };
        }
        self.hasher.update(&self.buffer);
        let line: OutcomeLine = serde_json::from_slice(&self.buffer).map_err(|e| malformed(&e))?;
        if self.last.as_ref().is_some_and(|last| *last >= line.path) {
            return Err(ReceiptError::Outcomes);
        }
        self.counts.add(line.outcome);
        self.last = Some(line.path.clone());
        Ok(Some(line))
    }
}

fn from_jsonl(bytes: &[u8]) -> Result<Vec<OutcomeLine>, serde_json::Error> {
    bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::tests::hub;

    fn answers() -> Answers {
        Answers::Bundle(BundleId::new(Timestamp::from_unix_ms(1), [4; 10]))
    }

    fn make(root: &SecretKey) -> Receipt {
        let node = SecretKey::from_seed([2; 32]);
        let at = Timestamp::from_unix_ms(1_700_000_000_000);
        let certificate = NodeCertificate::issue(root, hub(1), "01".into(), node.public(), at);
        let line =
            |p: &str, o| OutcomeLine::new(p.parse().unwrap(), Sha256Digest::of(p.as_bytes()), o, 1);
        let draft = Draft {
            answers: answers(),
            spoke_id: "rocket-01".parse().unwrap(),
            hub_id: hub(1),
            hub_epoch: HubEpoch::new(at, [5; 10]),
            position: 7,
            received_at: at,
            wanted: vec![],
        };
        let lines =
            vec![line("b.parquet", Outcome::Conflict), line("a.parquet", Outcome::Registered)];
        Receipt::sign(draft, lines, certificate, &node)
    }

    fn open(r: &Receipt, root: &SecretKey, spoke: &str, answers: Answers) -> Option<Receipt> {
        let roots = [root.public()];
        let spoke_id = spoke.parse().unwrap();
        let expected = Expected { roots: &roots, hub_id: hub(1), spoke_id: &spoke_id, answers };
        Receipt::open(r.ack.clone(), r.sig.clone(), r.outcomes.clone(), &expected).ok()
    }

    #[test]
    fn a_receipt_holds_for_its_subject_and_root_only() {
        let root = SecretKey::from_seed([1; 32]);
        let r = make(&root);
        let back = open(&r, &root, "rocket-01", answers()).unwrap();
        assert_eq!(back.lines[0].path.as_str(), "a.parquet");
        assert_eq!(back.head.counts.registered, 1);
        assert!(open(&r, &SecretKey::from_seed([3; 32]), "rocket-01", answers()).is_none());
        assert!(open(&r, &root, "rocket-02", answers()).is_none());
        let other = Answers::Reconcile(Sha256Digest::of(b"x"));
        assert!(open(&r, &root, "rocket-01", other).is_none());
    }

    #[test]
    fn one_changed_bit_anywhere_in_a_receipt_fails() {
        let root = SecretKey::from_seed([1; 32]);
        let r = make(&root);
        for part in 0..3 {
            let len = [&r.ack, &r.sig, &r.outcomes][part].len();
            for bit in 0..len * 8 {
                let mut bad = r.clone();
                let bytes = [&mut bad.ack, &mut bad.sig, &mut bad.outcomes];
                bytes.into_iter().nth(part).unwrap()[bit / 8] ^= 1 << (bit % 8);
                assert!(open(&bad, &root, "rocket-01", answers()).is_none(), "{part} {bit}");
            }
        }
    }
}
