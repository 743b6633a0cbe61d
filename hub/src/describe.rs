//! Looks into the footers of files that landed here and tells the manifest what they say.
//!
//! It follows promotion and holds nothing up; a file is looked at once, by the node that took it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::path::printable;
use barque_bundle::platform;
use barque_bundle::wire::Column;

use crate::command::{
    BATCH_BYTES_MAX, Command, Describe, Described, Footer, Reply, SchemaChange, SchemaColumns,
};
use crate::error::{Error, Refusal, chain};
use crate::footer;
use crate::hub::Parts;
use crate::manifest::query::{self, HeldRow};

/// Files looked at in one step.
const STEP: u32 = 1_000;
/// Time after a promotion in which more may follow, so that files go out together.
const GATHER: Duration = Duration::from_millis(300);
/// How often files that could not be looked at are tried again.
const AGAIN: Duration = Duration::from_secs(300);
/// Columns that a log line names.
const NAMED_MAX: usize = 10;

/// Describes what lands until the task is dropped.
pub async fn run(parts: Arc<Parts>) {
    let mut promoted = parts.promoted.clone();
    loop {
        promoted.borrow_and_update();
        match describe_all(&parts).await {
            Ok(()) => {}
            Err(Error::Refused(Refusal { code, .. })) => {
                tracing::debug!(code, "footers wait to be described");
            }
            Err(e) => tracing::error!(error = %chain(&e), "footers could not be described"),
        }
        if let Ok(Err(_)) = tokio::time::timeout(AGAIN, promoted.changed()).await {
            return;
        }
        tokio::time::sleep(GATHER).await;
    }
}

async fn describe_all(parts: &Arc<Parts>) -> Result<(), Error> {
    let mut after = 0;
    loop {
        let looking = Arc::clone(parts);
        let step = tokio::task::spawn_blocking(move || look(&looking, after));
        let (last, commands) =
            step.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
        for command in commands {
            if let Reply::Described(changes) =
                parts.proposer.command(Command::Describe(command)).await?
            {
                tell(parts, changes).await?;
            }
        }
        match last {
            Some(last) => after = last,
            None => return Ok(()),
        }
    }
}

/// Reads the footers of the next files; where to go on, and what to propose.
fn look(parts: &Parts, after: u64) -> Result<(Option<u64>, Vec<Describe>), Error> {
    let node_id = parts.identity.node_id;
    let rows = parts.readers.read(|c| query::undescribed(c, node_id, after, STEP))?;
    let last = rows.last().map(|r| r.cursor);
    let mut batches = Batches::default();
    for row in rows {
        // Its turn comes once it is visible.
        if parts.ledger.is_promoted(&row.landed, &row.sha256)? {
            batches.add(parts, row);
        }
    }
    Ok((last, batches.done))
}

/// Commands of bounded size.
#[derive(Default)]
struct Batches {
    done: Vec<Describe>,
    bytes: usize,
}

impl Batches {
    fn add(&mut self, parts: &Parts, row: HeldRow) {
        let path = parts.landing.path(&row.landed);
        let facts = platform::open_regular(&path)
            .map_err(|e| format!("it cannot be opened: {e}"))
            .and_then(|mut file| footer::read(&mut file));
        let (facts, schema) = match facts {
            Ok(f) => {
                let schema_id = f.schema_id();
                let facts = Footer::Read { rows: f.rows, row_groups: f.row_groups, schema_id };
                (facts, Some(SchemaColumns { schema_id, columns: f.columns }))
            }
            Err(why) => {
                tracing::info!(
                    path = %printable(&row.landed),
                    %why,
                    "a footer is not read; the file stays as it is"
                );
                (Footer::Unread(why), None)
            }
        };
        let bytes = row.landed.len() + 256 + schema.as_ref().map_or(0, schema_bytes);
        let has_room = self.bytes + bytes <= BATCH_BYTES_MAX;
        if self.done.is_empty() || !has_room {
            self.done.push(Describe::default());
            self.bytes = 0;
        }
        let Some(open) = self.done.last_mut() else { return };
        if let Some(schema) = schema
            && !open.schemas.iter().any(|s| s.schema_id == schema.schema_id)
        {
            self.bytes += schema_bytes(&schema);
            open.schemas.push(schema);
        }
        self.bytes += row.landed.len() + 256;
        open.files.push(Described { landed: row.landed, sha256: row.sha256, facts });
    }
}

fn schema_bytes(schema: &SchemaColumns) -> usize {
    schema.columns.iter().map(|c| c.path.len() + c.logical.len() + 64).sum()
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
