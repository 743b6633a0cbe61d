//! How a node becomes one: an operator's one-use token, the hub's root over a pinned connection.
//!
//! The answer opens for the asker alone (`seal`), so that it is nobody's on a plain line either.
//!
//! Every node holds the root key and the TLS authority, so that any of them can do what the first
//! could, and the hub outlives it: each data folder has to be guarded as the first one.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::key::NodeCertificate;
use barque_bundle::{ErrorKind, HubId, PublicKey, SecretKey, Sha256Digest, Timestamp, platform};
use barque_raft::LogStore;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::seal::{self, Request, Sealed};
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
    let secret_hash = seal::name_of(&seal::invitation(&secret).public());
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

/// Whether this node knows of an invitation; one that is not known costs the hub nothing.
async fn require_invited(parts: &Parts, secret_hash: Sha256Digest) -> Result<(), Error> {
    for wait in [Duration::ZERO, KNOWN_WAIT] {
        if !wait.is_zero() {
            parts.cluster.barrier(&parts.node, wait).await?;
        }
        let known = parts.readers.read_async(query::invitations).await?;
        if known.contains(&secret_hash) {
            return Ok(());
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
    if !request.is_proven(&hub) {
        return Err(refuse(
            "bad_proof",
            "the node has not the token, or not the key that it hands in",
        ));
    }
    let secret_hash = seal::name_of(&request.invitation);
    require_invited(parts, secret_hash).await?;
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
    request.seal(&hub, &answer)
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
    let hub = token.hub.to_string();
    let (request, asked) = Request::new(&hub, &token.secret, &asking.node_id, &key)?;
    let answer: Answer = request.open(&hub, asked, &ask(&token, &request).await?)?;
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
