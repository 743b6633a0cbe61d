//! A cluster of one out of what a node has, when most others are gone for good.
//!
//! Everything in the node's log is applied, also what was not agreed on for sure: dropping it could
//! lose what the lost majority had acknowledged, keeping it cannot. Then the log begins anew, in a
//! later term, with this node as its only member.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use openraft::{BasicNode, LeaderId, Membership};

use crate::log_store::LogStore;
use crate::node::finish_install;
use crate::state_machine::{Applied, StateMachine, apply_entries};
use crate::types::{LogId, StoredMembership, Vote};

/// Why a node's state cannot be made a cluster of its own.
#[derive(Debug, thiserror::Error)]
#[error("the node's state cannot be recovered: {0}")]
pub struct RecoverError(String);

fn failed(e: impl std::fmt::Display) -> RecoverError {
    RecoverError(e.to_string())
}

/// How far the state went, and what of the log was added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    pub applied_before: u64,
    /// Entries that were in the log and not applied yet.
    pub from_log: u64,
}

/// Makes a node the only member of its cluster, and applies `command` as the first of its new life.
/// It may be run again after a crash in the middle. A snapshot that had come whole to `folder`, the one
/// that the node is started with, is taken over first.
pub fn recover<M: StateMachine>(
    log: &LogStore,
    machine: &mut M,
    folder: &Path,
    command: &[u8],
) -> Result<Recovered, RecoverError> {
    finish_install(folder, log, machine).map_err(failed)?;
    let applied = Applied::of(machine).map_err(failed)?;
    let next = applied.last.map_or(0, |id| id.index + 1);
    if let Some(purged) = log.purged().map_err(failed)?.filter(|purged| *purged >= next) {
        return Err(RecoverError(format!(
            "its log was cut up to entry {purged}, and its state has only those before {next}"
        )));
    }
    let tail = log.from(next).map_err(failed)?;
    // A gap would mean that something that was agreed is not here at all.
    let is_whole = tail.iter().zip(next..).all(|(entry, index)| entry.log_id.index == index);
    if !is_whole {
        return Err(RecoverError(format!("its log does not go on at entry {next}")));
    }
    let from_log = tail.len() as u64;
    for entry in tail {
        apply_entries(machine, std::slice::from_ref(&entry)).map_err(failed)?;
    }
    let applied = Applied::of(machine).map_err(failed)?;
    let vote = log.vote().map_err(failed)?;
    let last_term = applied.last.map_or(0, |id| id.leader_id.term);
    let term = vote.map_or(0, |v| v.leader_id.term).max(last_term) + 1;
    let index = applied.last.map_or(0, |id| id.index + 1);
    let id = LogId::new(LeaderId::new(term, log.node_id()), index);
    let node = BasicNode::new(format!("{:016x}", log.node_id()));
    let members = Membership::new(
        vec![BTreeSet::from([log.node_id()])],
        BTreeMap::from([(log.node_id(), node)]),
    );
    let state = Applied { last: Some(id), membership: StoredMembership::new(Some(id), members) };
    let state = state.encode().map_err(failed)?;
    machine.apply(&[command], &state).map_err(failed)?;
    machine.checkpoint().map_err(failed)?;
    log.begin_anew(id, Vote::new(term, log.node_id())).map_err(failed)?;
    Ok(Recovered { applied_before: next, from_log })
}
