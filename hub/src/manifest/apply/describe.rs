//! `Describe`: what the footers of landed files say, once per file, gathered per measurement.

use barque_bundle::Sha256Digest;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{Describe, Described, Footer, Reply, SchemaChange};
use crate::manifest::query::{self, signed};

pub fn apply(c: &Connection, command: &Describe) -> rusqlite::Result<Reply> {
    let mut changes = Vec::new();
    for file in &command.files {
        changes.extend(describe(c, command, file)?);
    }
    Ok(Reply::Described(changes))
}

/// Schemas that are kept of one measurement. A writer that puts a number into a column's name
/// would make one with each file: those beyond are counted together.
const SCHEMAS_KEPT: i64 = 100;
/// Under which the files of further schemas are counted.
pub const OTHER: [u8; 32] = [0; 32];

/// Keeps the columns of a schema, once.
fn keep(c: &Connection, command: &Describe, schema_id: &Sha256Digest) -> rusqlite::Result<()> {
    if let Some(schema) = command.schemas.iter().find(|s| s.schema_id == *schema_id) {
        let columns = serde_json::to_string(&schema.columns).unwrap_or_default();
        c.prepare_cached("INSERT OR IGNORE INTO schemas (schema_id, columns) VALUES (?1, ?2)")?
            .execute(params![schema_id.as_bytes(), columns])?;
    }
    Ok(())
}

/// Takes the facts of one file; a repeat, and facts of another content, change nothing.
fn describe(
    c: &Connection,
    command: &Describe,
    file: &Described,
) -> rusqlite::Result<Option<SchemaChange>> {
    let (rows, row_groups, schema_id, unread) = match &file.facts {
        Footer::Read { rows, row_groups, schema_id } => {
            (Some(signed(*rows)), Some(signed(*row_groups)), Some(schema_id), None)
        }
        Footer::Unread(why) => (None, None, None, Some(why)),
    };
    let taken = c
        .prepare_cached(
            "UPDATE files SET rows = ?3, row_groups = ?4, schema_id = ?5, unread = ?6
             WHERE path = ?1 AND sha256 = ?2 AND state = 'held'
               AND rows IS NULL AND unread IS NULL",
        )?
        .execute(params![
            file.landed,
            file.sha256.as_bytes(),
            rows,
            row_groups,
            schema_id.map(|s| s.as_bytes().as_slice()),
            unread
        ])?;
    match (taken, &file.facts) {
        (1, Footer::Read { rows, schema_id, .. }) => {
            gather(c, command, &file.landed, (schema_id, signed(*rows)))
        }
        _ => Ok(None),
    }
}

/// Counts the file for its measurement; says so when the measurement had other schemas only.
fn gather(
    c: &Connection,
    command: &Describe,
    landed: &str,
    (schema_id, rows): (&Sha256Digest, i64),
) -> rusqlite::Result<Option<SchemaChange>> {
    let (database, measurement, partition): (String, String, Option<i64>) = c
        .prepare_cached(
            "SELECT coalesce(database, ''), coalesce(measurement, ''), partition_start
             FROM files WHERE path = ?1",
        )?
        .query_row([landed], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
    let (known, is_new): (i64, bool) = c
        .prepare_cached(
            "SELECT count(*), coalesce(max(schema_id = ?3), 0) = 0 FROM measurement_schemas
             WHERE database = ?1 AND measurement = ?2",
        )?
        .query_row(params![database, measurement, schema_id.as_bytes()], |r| {
            Ok((r.get(0)?, r.get(1)?))
        })?;
    let counted = match is_new && known >= SCHEMAS_KEPT {
        true => OTHER,
        false => *schema_id.as_bytes(),
    };
    if is_new && counted != OTHER {
        keep(c, command, schema_id)?;
    }
    let before = c
        .prepare_cached(
            "SELECT schema_id FROM measurement_schemas WHERE database = ?1 AND measurement = ?2
             ORDER BY files DESC, schema_id LIMIT 1",
        )?
        .query_row([&database, &measurement], |r| query::digest(r, "schema_id"))
        .optional()?;
    let files: i64 = c
        .prepare_cached(
            "INSERT INTO measurement_schemas
                    (database, measurement, schema_id, files, rows, first_partition, last_partition)
             VALUES (?1, ?2, ?3, 1, ?4, ?5, ?5)
             ON CONFLICT (database, measurement, schema_id) DO UPDATE SET
                 files = files + 1,
                 -- Numbers from outside: what they add up to stays a number.
                 rows = CASE WHEN rows > 9223372036854775807 - excluded.rows
                             THEN 9223372036854775807 ELSE rows + excluded.rows END,
                 first_partition = min(coalesce(first_partition, excluded.first_partition),
                                       coalesce(excluded.first_partition, first_partition)),
                 last_partition = max(coalesce(last_partition, excluded.last_partition),
                                      coalesce(excluded.last_partition, last_partition))
             RETURNING files",
        )?
        .query_row(params![database, measurement, counted, rows, partition], |r| r.get(0))?;
    Ok(before.filter(|_| files == 1 && counted != OTHER).map(|before| SchemaChange {
        database,
        measurement,
        landed: landed.to_owned(),
        schema_id: *schema_id,
        before,
    }))
}
