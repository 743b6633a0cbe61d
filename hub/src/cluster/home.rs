//! Which node keeps an unfinished upload: the one that has its bytes, else the one that rendezvous
//! hashing names, so that all nodes name the same one without asking each other.
//!
//! Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates" (1998).

use std::sync::Arc;
use std::time::Duration;

use barque_bundle::{BundleId, Sha256Digest};
use serde::{Deserialize, Serialize};

use super::wire::Lane;
use super::{Cluster, door};
use crate::command::NodeState;
use crate::error::Error;
use crate::hub::Parts;
use crate::ledger::UploadKey;

const ASK_WAIT: Duration = Duration::from_secs(2);

/// What a node is asked for: whether it has an upload, by its id or by its file.
#[derive(Debug, Serialize, Deserialize)]
pub enum Asked {
    Id(BundleId),
    File { spoke_id: String, path: String, sha256: Sha256Digest },
}

/// How many bytes of it the node has; none when it knows nothing of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub bytes: Option<u64>,
}

/// Nodes in the order in which they are the home of a key.
pub fn in_order(key: &[u8], nodes: &[u64]) -> Vec<u64> {
    let weight = |node: &u64| {
        let bytes = [&node.to_be_bytes()[..], key].concat();
        *Sha256Digest::of(&bytes).as_bytes()
    };
    let mut nodes = nodes.to_vec();
    nodes.sort_by_cached_key(|node| std::cmp::Reverse(weight(node)));
    nodes
}

/// What this node has of an upload.
pub fn kept(parts: &Parts, asked: &Asked) -> Result<Kept, Error> {
    let bytes = match asked {
        Asked::Id(id) => parts.ledger.bytes_of_upload(*id)?,
        Asked::File { spoke_id, path, sha256 } => {
            let (Ok(spoke_id), Ok(path)) = (spoke_id.parse(), path.parse()) else {
                return Ok(Kept { bytes: None });
            };
            let key = UploadKey { spoke_id, path, sha256: *sha256 };
            parts.ledger.upload(&key)?.map(|row| row.synced)
        }
    };
    Ok(Kept { bytes })
}

/// What each other node that answers has of an upload.
async fn kept_elsewhere(cluster: &Arc<Cluster>, asked: &Asked) -> Vec<(u64, u64)> {
    let Ok(body) = serde_json::to_vec(asked) else { return Vec::new() };
    let mut asking = tokio::task::JoinSet::new();
    for node_id in cluster.others().into_iter().filter(|id| cluster.is_alive(*id)) {
        let (cluster, body) = (Arc::clone(cluster), body.clone());
        asking.spawn(async move {
            let answer = cluster.ask(node_id, Lane::Work, door::UPLOADS, body, ASK_WAIT).await;
            let kept: Kept = serde_json::from_slice(&answer.ok()?).ok()?;
            Some((node_id, kept.bytes?))
        });
    }
    asking.join_all().await.into_iter().flatten().collect()
}

/// The other node that has an upload of this id, if one has.
pub async fn of_id(parts: &Parts, id: BundleId) -> Option<u64> {
    kept_elsewhere(&parts.cluster, &Asked::Id(id)).await.into_iter().map(|(node, _)| node).next()
}

/// The nodes that an upload of a file may be opened at, the best first.
pub async fn of_file(parts: &Parts, key: &UploadKey) -> Result<Vec<u64>, Error> {
    let own = parts.identity.node_id;
    let nodes = parts.cluster.nodes();
    let there: Vec<u64> = nodes
        .values()
        .filter(|n| n.state == NodeState::Active && parts.cluster.is_alive(n.node_id))
        .map(|n| n.node_id)
        .collect();
    let name = format!("{}\0{}\0{}", key.spoke_id, key.path.as_str(), key.sha256);
    let mut order = in_order(name.as_bytes(), &there);
    let asked = Asked::File {
        spoke_id: key.spoke_id.to_string(),
        path: key.path.as_str().to_owned(),
        sha256: key.sha256,
    };
    let mut kept = kept_elsewhere(&parts.cluster, &asked).await;
    kept.extend(self::kept(parts, &asked)?.bytes.map(|bytes| (own, bytes)));
    if let Some((node, _)) = kept.into_iter().filter(|k| k.1 > 0).max_by_key(|k| k.1) {
        order.retain(|id| *id != node);
        order.insert(0, node);
    }
    if order.is_empty() {
        order.push(own);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_home_when_another_node_comes_or_goes() {
        let nodes = [1, 2, 3, 4, 5];
        let keys: Vec<String> = (0..2_000).map(|n| format!("s/d/m/{n}.parquet")).collect();
        let mut moved = 0;
        let mut homes = std::collections::BTreeMap::<u64, usize>::new();
        for key in &keys {
            let all = in_order(key.as_bytes(), &nodes);
            *homes.entry(all[0]).or_default() += 1;
            let without: Vec<u64> = nodes.iter().copied().filter(|n| *n != 3).collect();
            let fewer = in_order(key.as_bytes(), &without);
            let expected: Vec<u64> = all.iter().copied().filter(|n| *n != 3).collect();
            assert_eq!(fewer, expected);
            moved += usize::from(all[0] != fewer[0]);
        }
        assert_eq!(moved, homes[&3]);
        assert!(homes.values().all(|n| (300..500).contains(n)), "{homes:?}");
    }
}
