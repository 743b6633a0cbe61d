//! How a node becomes one: an operator's one-use token, the hub's root over a pinned connection.
//!
//! The answer is sealed with the token's secret, so that it is nobody's on a plain line either.
//!
//! Every node holds the root key and the TLS authority, so that any of them can do what the first
//! could, and the hub outlives it: each data folder has to be guarded as the first one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::digest::{hex, length_prefixed, unhex};
use barque_bundle::key::NodeCertificate;
use barque_bundle::{ErrorKind, HubId, PublicKey, SecretKey, Sha256Digest, Timestamp, platform};
use barque_raft::LogStore;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use super::token;
use crate::client::{ClientError, NodeClient};
use crate::command::{Command, CommandRefusal, InviteNode, JoinNode, NodeState, Reply};
use crate::config::DataFolder;
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::identity::{self, Identity};
use crate::manifest::query;
use crate::tls;

const PREFIX: &str = "barque-join-";
const KNOWN_WAIT: Duration = Duration::from_secs(5);
const PROOF_LABEL: &str = "barque-join-v1";

/// What a join token carries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Token {
    pub hub: HubId,
    /// The root's public key: whom the joining node trusts.
    pub root: PublicKey,
    /// Whether the cluster listener speaks without TLS.
    pub plain: bool,
    /// Node ids in hex, with their addresses; first the node that made the token, whose clock says
    /// when it expires.
    pub nodes: Vec<(String, String)>,
    pub secret: String,
    pub expires_at: Timestamp,
}

impl Token {
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("a token has only string keys");
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }

    pub fn decode(text: &str) -> Result<Self, Error> {
        let json = text.trim().strip_prefix(PREFIX).and_then(|t| URL_SAFE_NO_PAD.decode(t).ok());
        json.and_then(|json| serde_json::from_slice(&json).ok()).ok_or_else(|| {
            Error::Unusable(format!(
                "this is not a join token; `barque hub node add` on a node of the hub prints one, \
                 starting with {PREFIX}"
            ))
        })
    }
}

/// A node asks to be let in. The secret itself never leaves the token: what goes over the line shows
/// that it is known, and names it by a digest of its digest.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub invitation: Sha256Digest,
    pub node_id: String,
    pub public_key: PublicKey,
    /// Hex of the key's signature over hub, node id and invitation: it owns what it hands in.
    pub proof: String,
    /// Over hub, node id and key, by who knows the secret.
    pub mac: Sha256Digest,
}

/// The hub's keys, for whoever has the token and nobody else on the line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sealed {
    pub nonce: String,
    pub sealed: String,
}

/// What both sides make of a secret's digest, which the manifest keeps.
struct Shared<'a> {
    secret_hash: &'a Sha256Digest,
    hub: &'a str,
    node_id: &'a str,
    public_key: &'a PublicKey,
}

impl Shared<'_> {
    fn invitation(secret_hash: &Sha256Digest) -> Sha256Digest {
        Sha256Digest::of(&length_prefixed(&[b"barque-join-id-v1", secret_hash.as_bytes()]))
    }

    fn derive(&self, label: &[u8]) -> Sha256Digest {
        let key = self.public_key.as_bytes();
        let (hash, hub) = (self.secret_hash.as_bytes(), self.hub.as_bytes());
        Sha256Digest::of(&length_prefixed(&[label, hash, hub, self.node_id.as_bytes(), key]))
    }

    fn mac(&self) -> Sha256Digest {
        self.derive(b"barque-join-mac-v1")
    }

    /// ChaCha20-Poly1305 (RFC 8439) under a key for this node and this answer.
    fn key(&self) -> Result<LessSafeKey, Error> {
        let key = self.derive(b"barque-join-seal-v1");
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes());
        key.map(LessSafeKey::new).map_err(|_| Error::Tls("a key has another length".to_owned()))
    }

    fn seal(&self, answer: &Answer, nonce: [u8; 12]) -> Result<Sealed, Error> {
        let mut bytes = serde_json::to_vec(answer).map_err(|e| Error::Malformed(e.to_string()))?;
        let unique = Nonce::assume_unique_for_key(nonce);
        self.key()?
            .seal_in_place_append_tag(unique, Aad::empty(), &mut bytes)
            .map_err(|_| Error::Tls("an answer cannot be sealed".to_owned()))?;
        Ok(Sealed { nonce: hex(&nonce), sealed: URL_SAFE_NO_PAD.encode(bytes) })
    }

    fn open(&self, sealed: &Sealed) -> Result<Answer, Error> {
        let foreign =
            || Error::Unusable("what answered does not know the token's secret".to_owned());
        let nonce = unhex(&sealed.nonce).ok_or_else(foreign)?;
        let nonce = Nonce::try_assume_unique_for_key(&nonce).map_err(|_| foreign())?;
        let mut bytes = URL_SAFE_NO_PAD.decode(&sealed.sealed).map_err(|_| foreign())?;
        let opened = self.key()?.open_in_place(nonce, Aad::empty(), &mut bytes);
        serde_json::from_slice(opened.map_err(|_| foreign())?).map_err(|_| foreign())
    }
}

/// All that a node needs to be one.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    pub root_key: String,
    pub certificate: NodeCertificate,
    pub ca_pem: String,
    pub ca_key: String,
    pub cluster_token: String,
    pub nodes: BTreeMap<String, String>,
}

fn hex_id(node_id: u64) -> String {
    format!("{node_id:016x}")
}

/// Where the nodes are, as far as this one knows.
fn addresses(parts: &Parts) -> BTreeMap<String, String> {
    let nodes = parts.cluster.nodes();
    let there = nodes.values().filter(|n| n.state != NodeState::Removed);
    there.filter_map(|n| Some((hex_id(n.node_id), n.address.clone()?))).collect()
}

/// Waits for a while until the hub knows where this node is, which it tells at its start.
async fn announced(parts: &Parts) {
    let own = parts.identity.node_id;
    let mut nodes = parts.cluster.watch_nodes();
    let known = nodes.wait_for(|n| n.get(&own).is_some_and(|row| row.address.is_some()));
    let _ = tokio::time::timeout(KNOWN_WAIT, known).await;
}

/// Makes a token by which one node may join.
pub async fn invite(
    parts: &Parts,
    votes: bool,
    secret: String,
    expires_at: Timestamp,
) -> Result<Token, Error> {
    if parts.config.cluster_listen.is_some() {
        announced(parts).await;
    }
    let own = hex_id(parts.identity.node_id);
    let mut nodes: Vec<(String, String)> = addresses(parts).into_iter().collect();
    nodes.sort_by_key(|(node, _)| *node != own);
    if nodes.first().is_none_or(|(node, _)| *node != own) {
        return Err(Refusal::new(
            ErrorKind::Invalid,
            "no_cluster_listener",
            "this node has no listener for other nodes; start it with --cluster-listen ADDR first",
        )
        .into());
    }
    let secret_hash = Sha256Digest::of(secret.as_bytes());
    let command = Command::InviteNode(InviteNode { secret_hash, votes, expires_at });
    parts.proposer.command(command).await?;
    Ok(Token {
        hub: parts.identity.hub_id,
        root: parts.identity.root_public(),
        plain: parts.config.cluster_plain,
        nodes,
        secret,
        expires_at,
    })
}

/// The secret's digest that an invitation is named by, as far as this node knows; one that is not
/// known costs the hub nothing.
async fn invited(parts: &Parts, invitation: Sha256Digest) -> Result<Sha256Digest, Error> {
    for wait in [Duration::ZERO, KNOWN_WAIT] {
        if !wait.is_zero() {
            parts.cluster.barrier(&parts.node, wait).await?;
        }
        let known = parts.readers.read_async(query::invitations).await?;
        let named = |hash: &Sha256Digest| Shared::invitation(hash) == invitation;
        if let Some(hash) = known.into_iter().find(named) {
            return Ok(hash);
        }
    }
    let detail = "the join token is not known to this hub, or has expired; make another one";
    Err(Refusal::new(ErrorKind::Forbidden, "unknown_token", detail).into())
}

/// Lets a node in that has a good token, and hands it what nodes share.
pub async fn take(parts: &Arc<Parts>, request: Request) -> Result<Sealed, Error> {
    let refuse = |code, detail: &str| Error::from(Refusal::new(ErrorKind::Forbidden, code, detail));
    let hub_id = parts.identity.hub_id;
    let hub = hub_id.to_string();
    let secret_hash = invited(parts, request.invitation).await?;
    let shared = Shared {
        secret_hash: &secret_hash,
        hub: &hub,
        node_id: &request.node_id,
        public_key: &request.public_key,
    };
    let proof = unhex(&request.proof).unwrap_or_default();
    let signed = signed(&hub, &request.node_id, &request.invitation);
    let signed = signed.each_ref().map(|s| s.as_bytes());
    let is_proven = request.public_key.verify(PROOF_LABEL, &signed, &proof).is_ok();
    if !is_proven || shared.mac() != request.mac {
        return Err(refuse("bad_proof", "the node does not own the key that it hands in"));
    }
    let node_id = u64::from_str_radix(&request.node_id, 16)
        .ok()
        .filter(|id| *id > 0 && i64::try_from(*id).is_ok())
        .ok_or_else(|| refuse("bad_node_id", "the node's id is malformed"))?;
    let public_key = request.public_key.clone();
    let command = Command::JoinNode(JoinNode { secret_hash, node_id, public_key });
    match parts.proposer.command(command).await? {
        Reply::Refused(CommandRefusal::TokenUsed) => {
            return Err(refuse("token_used", "the join token was used by another node"));
        }
        Reply::Refused(CommandRefusal::TokenExpired) => {
            return Err(refuse("token_expired", "the join token has expired; make another one"));
        }
        Reply::Refused(CommandRefusal::NodeRemoved) => {
            let detail = "this node was removed; empty its folder and join with a new token";
            return Err(refuse("node_removed", detail));
        }
        Reply::Refused(_) => {
            return Err(refuse("unknown_token", "the join token is not known to this hub"));
        }
        _ => {}
    }
    tracing::info!(node = request.node_id, "a node joins");
    let certificate = NodeCertificate::issue(
        &parts.identity.root,
        hub_id,
        request.node_id.clone(),
        request.public_key.clone(),
        (parts.clock)(),
    );
    let (ca_pem, ca_key) = tls::authority_files(&DataFolder(&parts.config.data).tls())?;
    let answer = Answer {
        root_key: parts.identity.root.to_base64(),
        certificate,
        ca_pem,
        ca_key,
        cluster_token: parts.cluster.token.as_ref().map(|t| t.spoken()).unwrap_or_default(),
        nodes: addresses(parts),
    };
    shared.seal(&answer, rand::random())
}

/// What a node signs when it asks.
fn signed(hub: &str, node_id: &str, invitation: &Sha256Digest) -> [String; 3] {
    [hub.to_owned(), node_id.to_owned(), invitation.to_string()]
}

/// The random values that a new node is made of.
pub struct Seeds {
    pub node_id: u64,
    pub node: [u8; 32],
}

/// Makes a data folder a node of the hub that the token is of. The same folder may come again with
/// the same token, when the answer was lost.
pub async fn join(
    data: &Path,
    token: &str,
    url: Option<String>,
    seeds: Seeds,
    now: Timestamp,
) -> Result<Identity, Error> {
    let token = Token::decode(token)?;
    identity::require_empty(data)?;
    identity::make_folder(data)?;
    let asking = Asking::open(data, token.hub, seeds)?;
    let key: SecretKey = asking.key.parse().map_err(|_| malformed(data))?;
    let node_id = u64::from_str_radix(&asking.node_id, 16).map_err(|_| malformed(data))?;
    let (hub, secret_hash) = (token.hub.to_string(), Sha256Digest::of(token.secret.as_bytes()));
    let invitation = Shared::invitation(&secret_hash);
    let public_key = key.public();
    let signed = signed(&hub, &asking.node_id, &invitation);
    let proof = hex(&key.sign(PROOF_LABEL, &signed.each_ref().map(|s| s.as_bytes())));
    let shared = Shared {
        secret_hash: &secret_hash,
        hub: &hub,
        node_id: &asking.node_id,
        public_key: &public_key,
    };
    let request = Request {
        invitation,
        node_id: asking.node_id.clone(),
        public_key: public_key.clone(),
        proof,
        mac: shared.mac(),
    };
    let answer = shared.open(&ask(&token, &request).await?)?;
    let root: SecretKey = answer.root_key.parse().map_err(|_| malformed(data))?;
    let certificate = answer.certificate.clone();
    let is_ours = root.public() == token.root
        && certificate.public_key == key.public()
        && certificate.verify(&[token.root], token.hub).is_ok();
    if !is_ours {
        return Err(Error::Unusable("the node that answered is not of the token's hub".to_owned()));
    }
    let folder = DataFolder(data);
    tls::adopt(&folder.tls(), &answer.ca_pem, &answer.ca_key)?;
    token::save(&folder.cluster_token(), &[answer.cluster_token])?;
    write_json(&folder.peers(), &answer.nodes)?;
    identity::remove_leftovers(data);
    drop(LogStore::create(&folder.raft_db(), node_id)?);
    let identity = Identity {
        hub_id: token.hub,
        node_id,
        root,
        node: key,
        certificate,
        url,
        has_joined: true,
        created_at: now,
    };
    // Last: a folder without it is none of a node, and starts over.
    identity.save(&folder.identity())?;
    let _ = std::fs::remove_file(folder.joining());
    Ok(identity)
}

/// The first node of the token that answers.
async fn ask(token: &Token, request: &Request) -> Result<Sealed, Error> {
    let client = NodeClient::joining(&token.root, token.plain)?;
    let mut last = None;
    for (node, address) in &token.nodes {
        let node_id = u64::from_str_radix(node, 16).unwrap_or(0);
        match client.post(node_id, address, super::door::JOIN, request).await {
            Ok(answer) => return Ok(answer),
            Err(ClientError::Refused(p)) if p.status < 500 => {
                return Err(Error::Unusable(p.detail.clone()));
            }
            Err(e) => last = Some(format!("{address}: {}", crate::error::chain(&e))),
        }
    }
    Err(Error::Unusable(format!(
        "no node of the hub can be reached; it may be down, or another network ({})",
        last.unwrap_or_default()
    )))
}

/// What a folder that is about to join says of itself, kept so that it says the same again.
#[derive(Serialize, Deserialize)]
struct Asking {
    hub_id: HubId,
    node_id: String,
    key: String,
}

impl Asking {
    fn open(data: &Path, hub_id: HubId, seeds: Seeds) -> Result<Self, Error> {
        let path = DataFolder(data).joining();
        if let Ok(json) = std::fs::read(&path)
            && let Ok(asking) = serde_json::from_slice::<Self>(&json)
            && asking.hub_id == hub_id
        {
            return Ok(asking);
        }
        let node_id = hex_id(identity::as_node_id(seeds.node_id));
        let key = SecretKey::from_seed(seeds.node).to_base64();
        let asking = Self { hub_id, node_id, key };
        write_json(&path, &asking)?;
        Ok(asking)
    }
}

fn malformed(data: &Path) -> Error {
    Error::Malformed(format!("{}: a key or an id of the joining node", data.display()))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(value).map_err(|e| Error::Malformed(e.to_string()))?;
    platform::write_durably(path, &json, 0o600).map_err(Error::io("cannot write", path))
}

/// The addresses from the time of joining.
pub fn known(data: &Path) -> BTreeMap<u64, String> {
    let json = std::fs::read(DataFolder(data).peers()).unwrap_or_default();
    let nodes: BTreeMap<String, String> = serde_json::from_slice(&json).unwrap_or_default();
    let id = |text: &str| u64::from_str_radix(text, 16).ok();
    nodes.into_iter().filter_map(|(node, address)| Some((id(&node)?, address))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hubs_keys_open_for_the_token_and_the_node_alone() {
        let root = SecretKey::from_seed([1; 32]);
        let key = |n| SecretKey::from_seed([n; 32]).public();
        let (node, other) = (key(2), key(3));
        let at = Timestamp::from_unix_ms(1);
        let hub = HubId::new(at, [1; 10]);
        let answer = Answer {
            root_key: root.to_base64(),
            certificate: NodeCertificate::issue(&root, hub, "ab".into(), node.clone(), at),
            ca_pem: "pem".into(),
            ca_key: "key".into(),
            cluster_token: "token".into(),
            nodes: BTreeMap::new(),
        };
        let (hash, wrong) = (Sha256Digest::of(b"secret"), Sha256Digest::of(b"other"));
        let of = |secret_hash, public_key, node_id| Shared {
            secret_hash,
            hub: "hub",
            node_id,
            public_key,
        };
        let sealed = of(&hash, &node, "ab").seal(&answer, [7; 12]).unwrap();
        assert!(!sealed.sealed.contains(&root.to_base64()));
        let opened = of(&hash, &node, "ab").open(&sealed).unwrap();
        assert_eq!(opened.root_key, root.to_base64());
        assert!(of(&wrong, &node, "ab").open(&sealed).is_err());
        assert!(of(&hash, &other, "ab").open(&sealed).is_err());
        assert!(of(&hash, &node, "ac").open(&sealed).is_err());
        let cut = Sealed { nonce: sealed.nonce.clone(), sealed: sealed.sealed[..20].to_owned() };
        assert!(of(&hash, &node, "ab").open(&cut).is_err());
        assert_ne!(of(&hash, &node, "ab").mac(), of(&wrong, &node, "ab").mac());
    }
}
