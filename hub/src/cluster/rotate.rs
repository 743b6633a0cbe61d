//! Changes the cluster token while nodes talk: first all hear the new value too, then all say it, then
//! the old one counts no more.
//!
//! A value that was made later has a higher number before its dash, so that whichever node is asked to
//! go on with a change that broke off, the newer one is the one that stays.

use std::time::Duration;

use barque_bundle::ErrorKind;

use super::wire::Lane;
use super::{Cluster, door};
use crate::error::{Error, Refusal};
use crate::hub::Parts;

const TELL_WAIT: Duration = Duration::from_secs(5);
/// What was sent with the old value is heard by then.
const SETTLE: Duration = Duration::from_secs(2);

pub async fn all(parts: &Parts, fresh: String) -> Result<(), Error> {
    let cluster = &parts.cluster;
    let Some(token) = &cluster.token else {
        let detail = "this hub has no other nodes, and so no cluster token";
        return Err(Refusal::new(ErrorKind::Invalid, "no_cluster_listener", detail).into());
    };
    let Ok(_turn) = cluster.rotating.try_lock() else {
        let detail = "the cluster token is being changed already; ask again when that is done";
        return Err(Refusal::new(ErrorKind::Conflict, "rotating", detail).into());
    };
    let mut values = token.values();
    values.sort_by_key(|v| std::cmp::Reverse(generation(v)));
    let (old, new) = match values.as_slice() {
        [begun, old] => (old.clone(), begun.clone()),
        [old, ..] => (old.clone(), format!("{}-{fresh}", generation(old) + 1)),
        [] => return Err(Error::Malformed("the cluster token has no value".to_owned())),
    };
    let both = [old.clone(), new.clone()];
    token.replace(&both)?;
    tell_all(cluster, &both).await?;
    tell_all(cluster, &[new.clone(), old]).await?;
    tokio::time::sleep(SETTLE).await;
    token.replace(std::slice::from_ref(&new))?;
    tokio::time::sleep(SETTLE).await;
    tell_all(cluster, std::slice::from_ref(&new)).await?;
    tracing::info!("the cluster token was changed");
    Ok(())
}

/// Which value of a hub's life this is; one that says no number is the first.
fn generation(value: &str) -> u64 {
    value.split_once('-').and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

async fn tell_all(cluster: &Cluster, values: &[String]) -> Result<(), Error> {
    let body = serde_json::to_vec(values).map_err(|e| Error::Malformed(e.to_string()))?;
    for node_id in cluster.others() {
        let told = cluster.ask(node_id, Lane::Work, door::TOKEN, body.clone(), TELL_WAIT).await;
        told.map_err(|e| {
            let node = cluster.title(node_id);
            tracing::warn!(node, error = %e, "the cluster token could not be told");
            let detail = format!(
                "node {node} could not be told; both values count meanwhile. Try again when it is \
                 back, or remove it"
            );
            Refusal::new(ErrorKind::Unavailable, "node_unreachable", detail)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_values_the_one_that_was_made_later_is_the_new_one() {
        assert_eq!((generation("abc"), generation("1-abc"), generation("12-0")), (0, 1, 12));
        assert_eq!(generation("x-abc"), 0);
    }
}
