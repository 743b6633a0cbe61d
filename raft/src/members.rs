//! Who takes part: one step at a time from what Raft's membership is to what it should be.
//!
//! The wish comes from the replicated state, so that any leader can go on where another one ended.
//! Source of the protocol: joint consensus (Ongaro and Ousterhout, "In Search of an Understandable
//! Consensus Algorithm", 6).

use std::collections::{BTreeMap, BTreeSet};

use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers};

use crate::node::{Node, ProposeError};
use crate::types::RaftMetrics;

/// Entries that a learner may lack and still be made a voter: a moment of traffic.
const CAUGHT_UP_ENTRIES: u64 = 200;

/// One change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A change that another leader began is brought to its end.
    Settle(BTreeSet<u64>),
    AddLearner(u64),
    MakeVoter(u64),
    /// From voter to learner, or out altogether.
    RemoveVoter {
        node_id: u64,
        stays: bool,
    },
    RemoveLearner(u64),
}

/// What Raft's membership is.
struct Present {
    /// The voters of the last configuration, and whether there is another one beside it.
    voters: BTreeSet<u64>,
    is_joint: bool,
    learners: BTreeSet<u64>,
}

impl Present {
    fn of(metrics: &RaftMetrics) -> Self {
        let membership = metrics.membership_config.membership();
        let configs = membership.get_joint_config();
        Self {
            voters: configs.last().cloned().unwrap_or_default(),
            is_joint: configs.len() > 1,
            learners: membership.learner_ids().collect(),
        }
    }
}

/// The next step towards `wanted` (node id to whether it votes), if one can be made now.
fn next_step(
    present: &Present,
    wanted: &BTreeMap<u64, bool>,
    caught_up: impl Fn(u64) -> bool,
    is_alive: impl Fn(u64) -> bool,
) -> Option<Step> {
    if present.is_joint {
        return Some(Step::Settle(present.voters.clone()));
    }
    let is_in = |id: &u64| present.voters.contains(id) || present.learners.contains(id);
    if let Some(id) = wanted.keys().find(|id| !is_in(id)) {
        return Some(Step::AddLearner(*id));
    }
    // What does not answer is no help to a majority.
    let ready = |id: &&u64| wanted.get(id) == Some(&true) && caught_up(**id) && is_alive(**id);
    if let Some(id) = present.learners.iter().find(ready) {
        return Some(Step::MakeVoter(*id));
    }
    // The last voter stays: without one nothing could ever be agreed again.
    let stays = |id: &u64| wanted.get(id) == Some(&true);
    // Nor does one go whose going would leave most of the others silent, or without most of the log.
    let may_go = |gone: &&u64| {
        let left: Vec<u64> = present.voters.iter().copied().filter(|id| id != *gone).collect();
        let able = left.iter().filter(|id| is_alive(**id) && caught_up(**id)).count();
        !stays(gone) && able > left.len() / 2
    };
    if present.voters.iter().any(stays)
        && let Some(id) = present.voters.iter().find(may_go)
    {
        return Some(Step::RemoveVoter { node_id: *id, stays: wanted.contains_key(id) });
    }
    present.learners.iter().find(|id| !wanted.contains_key(id)).copied().map(Step::RemoveLearner)
}

impl Node {
    /// Makes one step towards `wanted` (node id to whether it votes); true when one was made. Only
    /// the leader makes any, and none that would leave most voters unable to agree. A learner becomes
    /// a voter once it has nearly all of the log.
    pub async fn approach_members(
        &self,
        wanted: &BTreeMap<u64, bool>,
        is_alive: impl Fn(u64) -> bool,
    ) -> Result<bool, ProposeError> {
        let metrics = self.raft().metrics().borrow().clone();
        if metrics.current_leader != Some(self.node_id()) {
            return Ok(false);
        }
        let last = metrics.last_log_index.unwrap_or(0);
        let own = self.node_id();
        let caught_up = |id: u64| {
            let matched = metrics.replication.as_ref().and_then(|r| r.get(&id)).copied().flatten();
            id == own || matched.is_some_and(|m| m.index + CAUGHT_UP_ENTRIES >= last)
        };
        let Some(step) = next_step(&Present::of(&metrics), wanted, caught_up, is_alive) else {
            return Ok(false);
        };
        tracing::info!(?step, "the membership changes");
        let one = |id| BTreeSet::from([id]);
        let (change, retain) = match step {
            Step::Settle(voters) => (ChangeMembers::ReplaceAllVoters(voters), true),
            Step::AddLearner(id) => {
                let node = BasicNode::new(format!("{id:016x}"));
                (ChangeMembers::AddNodes(BTreeMap::from([(id, node)])), true)
            }
            Step::MakeVoter(id) => (ChangeMembers::AddVoterIds(one(id)), true),
            Step::RemoveVoter { node_id, stays } => {
                (ChangeMembers::RemoveVoters(one(node_id)), stays)
            }
            Step::RemoveLearner(id) => (ChangeMembers::RemoveNodes(one(id)), true),
        };
        match self.raft().change_membership(change, retain).await {
            Ok(_) => Ok(true),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Ok(false),
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                ChangeMembershipError::InProgress(_),
            ))) => Ok(false),
            Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(e))) => {
                tracing::warn!(error = %e, "a change of the membership was refused");
                Ok(false)
            }
            Err(RaftError::Fatal(e)) => Err(ProposeError::Stopped(e.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(voters: &[u64], learners: &[u64]) -> Present {
        Present {
            voters: voters.iter().copied().collect(),
            is_joint: false,
            learners: learners.iter().copied().collect(),
        }
    }

    fn wanted(list: &[(u64, bool)]) -> BTreeMap<u64, bool> {
        list.iter().copied().collect()
    }

    #[test]
    fn a_node_is_a_learner_until_it_has_the_log_and_a_reader_for_good() {
        let want = wanted(&[(1, true), (2, true), (3, false)]);
        let none = |_| false;
        let step = |p: &Present, c: &dyn Fn(u64) -> bool| next_step(p, &want, c, |_| true);
        assert_eq!(step(&present(&[1], &[]), &none), Some(Step::AddLearner(2)));
        assert_eq!(step(&present(&[1], &[2]), &none), Some(Step::AddLearner(3)));
        assert_eq!(step(&present(&[1], &[2, 3]), &none), None);
        assert_eq!(step(&present(&[1], &[2, 3]), &|_| true), Some(Step::MakeVoter(2)));
        assert_eq!(step(&present(&[1, 2], &[3]), &|_| true), None);
    }

    #[test]
    fn what_is_not_wanted_goes_and_the_last_voter_stays() {
        let step = |p: &Present, w: &[(u64, bool)]| next_step(p, &wanted(w), |_| true, |_| true);
        let gone = Step::RemoveVoter { node_id: 1, stays: false };
        assert_eq!(step(&present(&[1, 2], &[]), &[(2, true)]), Some(gone));
        let demoted = Step::RemoveVoter { node_id: 1, stays: true };
        assert_eq!(step(&present(&[1, 2], &[]), &[(1, false), (2, true)]), Some(demoted));
        assert_eq!(step(&present(&[1], &[3]), &[(1, true)]), Some(Step::RemoveLearner(3)));
        assert_eq!(step(&present(&[1], &[]), &[]), None);
        let dead = |p: &Present, w: &[(u64, bool)], dead: u64| {
            next_step(p, &wanted(w), |_| true, |id| id != dead)
        };
        // Of two voters one may not leave when the other is silent, nor one of three then.
        assert_eq!(dead(&present(&[1, 2], &[]), &[(2, true)], 2), None);
        assert_eq!(dead(&present(&[1, 2, 3], &[]), &[(2, true), (3, true)], 3), None);
        let gone = Step::RemoveVoter { node_id: 1, stays: false };
        assert_eq!(dead(&present(&[1, 2, 3], &[]), &[(2, true), (3, true)], 1), Some(gone));
        // Nor when one of the two others has a disk that is full, and lags.
        let lags = |lagging: u64| {
            let wanted = wanted(&[(2, true), (3, true)]);
            next_step(&present(&[1, 2, 3], &[]), &wanted, |id| id != lagging, |_| true)
        };
        assert_eq!(lags(3), None);
        assert!(lags(1).is_some());
        // A silent learner is not made a voter.
        assert_eq!(dead(&present(&[1], &[2]), &[(1, true), (2, true)], 2), None);
        let half = Present { is_joint: true, ..present(&[1, 2], &[]) };
        assert_eq!(step(&half, &[(1, true)]), Some(Step::Settle(BTreeSet::from([1, 2]))));
    }
}
