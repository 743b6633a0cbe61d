//! Looks into the footers of files that landed here and tells the manifest what they say.
//!
//! It follows promotion and holds nothing up; a file is looked at once, by the node that took it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use barque_bundle::path::printable;
use barque_bundle::platform;
use barque_bundle::wire::Column;

use crate::background;
use crate::command::{
    BATCH_BYTES_MAX, Command, Describe, Described, Footer, Reply, SchemaChange, SchemaColumns,
};
use crate::error::{Error, Refusal, chain};
use crate::footer::{self, FooterError};
use crate::hub::Parts;
use crate::manifest::query::{self, HeldRow};

/// Files looked at in one step.
const STEP: u32 = 250;
/// Longest rest behind a step.
const REST_MAX: Duration = Duration::from_secs(1);
/// Time after a promotion in which more may follow, so that files go out together.
const GATHER: Duration = Duration::from_millis(300);
/// Longest wait for an end of what is under way, before each step.
const GIVE_WAY_MAX: Duration = Duration::from_secs(5);
/// How often files that could not be looked at are tried again.
const AGAIN: Duration = Duration::from_secs(300);
/// Invisible files that are asked for again each time.
const UNSEEN_MAX: usize = 100;
/// Columns that a log line names.
const NAMED_MAX: usize = 10;

/// Describes what lands until the task is dropped.
///
/// It goes on behind the last file; what was not visible or readable then is looked at again by
/// the full round every few minutes.
pub async fn run(parts: Arc<Parts>) {
    let mut promoted = parts.promoted.clone();
    let (mut after, mut full_round) = (0, tokio::time::Instant::now() + AGAIN);
    loop {
        promoted.borrow_and_update();
        if tokio::time::Instant::now() >= full_round {
            (after, full_round) = (0, tokio::time::Instant::now() + AGAIN);
        }
        match describe_behind(&parts, &mut after).await {
            Ok(()) => {}
            Err(Error::Refused(Refusal { code, .. })) => {
                tracing::debug!(code, "footers wait to be described");
            }
            Err(e) => tracing::error!(error = %e.told(), "footers could not be described"),
        }
        if let Ok(Err(_)) = tokio::time::timeout_at(full_round, promoted.changed()).await {
            return;
        }
        tokio::time::sleep(GATHER).await;
    }
}

async fn describe_behind(parts: &Arc<Parts>, after: &mut u64) -> Result<(), Error> {
    let (mut unseen, mut first_unseen) = (0, None);
    loop {
        give_way(parts).await;
        let (looking, from) = (Arc::clone(parts), *after);
        let found = background::run("describe", move || look(&looking, from)).await?;
        if !found.command.files.is_empty() {
            let (command, begun) = (Command::Describe(found.command), Instant::now());
            if let Reply::Described(changes) = parts.proposer.command(command).await? {
                tell(parts, changes).await?;
            }
            // Nobody waits for it: half of the time is left to those who wait for something.
            tokio::time::sleep(begun.elapsed().min(REST_MAX)).await;
        }
        unseen += found.unseen;
        first_unseen = first_unseen.or(found.first_unseen);
        let Some(last) = found.last else { break };
        *after = last;
    }
    // Files on their way to being visible are looked at next time. Many that stay invisible wait
    // for the full round, so that they are not asked for again with each that lands.
    if let Some(first) = first_unseen.filter(|_| unseen <= UNSEEN_MAX) {
        *after = first - 1;
    }
    Ok(())
}

/// Waits while bodies come, though not for ever.
async fn give_way(parts: &Parts) {
    let end = Instant::now() + GIVE_WAY_MAX;
    while parts.gate.streams() > 0 && Instant::now() < end {
        tokio::time::sleep(GATHER).await;
    }
}

/// One command's worth of footers, and the file behind which to go on.
#[derive(Default)]
struct Found {
    command: Describe,
    bytes: usize,
    last: Option<u64>,
    /// Files that are not visible yet, and the first of them.
    unseen: usize,
    first_unseen: Option<u64>,
}

/// Reads the footers of the next files, until the command is large enough.
fn look(parts: &Parts, after: u64) -> Result<Found, Error> {
    let node_id = parts.identity.node_id;
    let rows = parts.readers.read(|c| query::undescribed(c, node_id, after, STEP))?;
    let mut found = Found::default();
    for row in rows {
        found.last = Some(row.cursor);
        if parts.ledger.is_promoted(&row.landed, &row.sha256)? {
            found.add(parts, row);
        } else {
            found.unseen += 1;
            found.first_unseen = found.first_unseen.or(Some(row.cursor));
        }
        if found.bytes > BATCH_BYTES_MAX / 2 {
            break;
        }
    }
    Ok(found)
}

impl Found {
    fn add(&mut self, parts: &Parts, row: HeldRow) {
        let path = parts.landing.path(&row.landed);
        let facts = platform::open_regular(&path)
            .map_err(FooterError::from)
            .and_then(|mut file| footer::read(&mut file));
        let facts = match facts {
            Ok(f) => {
                let schema_id = f.schema_id();
                self.add_schema(SchemaColumns { schema_id, columns: f.columns });
                Footer::Read { rows: f.rows, row_groups: f.row_groups, schema_id }
            }
            Err(FooterError::Unread(why)) => {
                tracing::info!(
                    path = %printable(&row.landed),
                    %why,
                    "a footer is not read; the file stays as it is"
                );
                Footer::Unread(why)
            }
            // A fault of this moment says nothing of the file: the next full round looks again.
            Err(e @ FooterError::Io(_)) => {
                tracing::warn!(path = %path.display(), error = %chain(&e), "a footer waits");
                return;
            }
        };
        self.bytes += row.landed.len() + 256;
        self.command.files.push(Described { landed: row.landed, sha256: row.sha256, facts });
    }

    fn add_schema(&mut self, schema: SchemaColumns) {
        if self.command.schemas.iter().any(|s| s.schema_id == schema.schema_id) {
            return;
        }
        let column = |c: &Column| c.path.len() + c.logical.len() + 64;
        self.bytes += schema.columns.iter().map(column).sum::<usize>();
        self.command.schemas.push(schema);
    }
}

/// One line in the log for each measurement that got a further schema.
async fn tell(parts: &Arc<Parts>, changes: Vec<SchemaChange>) -> Result<(), Error> {
    for change in changes {
        let (new, old) = (change.schema_id, change.before);
        let columns = parts
            .readers
            .read_async(move |c| Ok((query::columns(c, &old)?, query::columns(c, &new)?)))
            .await?;
        let (before, after) = (columns.0.unwrap_or_default(), columns.1.unwrap_or_default());
        tracing::warn!(
            database = %printable(&change.database),
            measurement = %printable(&change.measurement),
            path = %printable(&change.landed),
            change = %difference(&before, &after),
            "a file changes its measurement's schema; `barque hub schemas` lists all of them"
        );
    }
    Ok(())
}

/// What the second schema has otherwise than the first, in words.
fn difference(before: &[Column], after: &[Column]) -> String {
    let by_path = |columns: &[Column]| -> BTreeMap<String, String> {
        let kind = |c: &Column| match c.logical.as_str() {
            "" => c.physical.clone(),
            logical => format!("{} {logical}", c.physical),
        };
        columns.iter().map(|c| (c.path.clone(), kind(c))).collect()
    };
    let (old, new) = (by_path(before), by_path(after));
    let mut words = Vec::new();
    for (path, kind) in &new {
        match old.get(path) {
            None => words.push(format!("new {path} ({kind})")),
            Some(was) if was != kind => words.push(format!("{path} is {kind}, was {was}")),
            Some(_) => {}
        }
    }
    words.extend(old.keys().filter(|p| !new.contains_key(*p)).map(|p| format!("no {p}")));
    if words.is_empty() {
        return "the same columns, in another order or optional now".to_owned();
    }
    let more = words.len().saturating_sub(NAMED_MAX);
    words.truncate(NAMED_MAX);
    let tail = if more > 0 { format!(", and {more} more") } else { String::new() };
    printable(&format!("{}{tail}", words.join(", "))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_in_words() {
        let column = |path: &str, physical: &str, logical: &str| Column {
            path: path.to_owned(),
            physical: physical.to_owned(),
            logical: logical.to_owned(),
            repetition: "OPTIONAL".to_owned(),
        };
        let before = [column("t", "INT64", "timestamp(us,utc)"), column("v", "DOUBLE", "")];
        let after = [column("t", "INT64", "timestamp(ns,utc)"), column("w", "INT32", "")];
        assert_eq!(
            difference(&before, &after),
            "t is INT64 timestamp(ns,utc), was INT64 timestamp(us,utc), new w (INT32), no v"
        );
        assert!(difference(&before, &before).contains("same columns"));
    }
}
