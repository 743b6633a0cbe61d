//! `Describe`: what the footers of landed files say, once per file, gathered per measurement.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{Describe, Described, Footer, Reply, SchemaChange};
use crate::manifest::query::{self, signed};

pub fn apply(c: &Connection, command: &Describe) -> rusqlite::Result<Reply> {
    for schema in &command.schemas {
        let columns = serde_json::to_string(&schema.columns).unwrap_or_default();
        c.prepare_cached("INSERT OR IGNORE INTO schemas (schema_id, columns) VALUES (?1, ?2)")?
            .execute(params![schema.schema_id.as_bytes(), columns])?;
    }
    let mut changes = Vec::new();
    for file in &command.files {
        changes.extend(describe(c, file)?);
    }
    Ok(Reply::Described(changes))
}

/// Takes the facts of one file; a repeat, and facts of another content, change nothing.
fn describe(c: &Connection, file: &Described) -> rusqlite::Result<Option<SchemaChange>> {
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
            gather(c, &file.landed, schema_id, signed(*rows))
        }
        _ => Ok(None),
    }
}

/// Counts the file for its measurement; says so when the measurement had other schemas only.
fn gather(
    c: &Connection,
    landed: &str,
    schema_id: &barque_bundle::Sha256Digest,
    rows: i64,
) -> rusqlite::Result<Option<SchemaChange>> {
    let (database, measurement, partition): (String, String, Option<i64>) = c
        .prepare_cached(
            "SELECT coalesce(database, ''), coalesce(measurement, ''), partition_start
             FROM files WHERE path = ?1",
        )?
        .query_row([landed], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
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
                 files = files + 1, rows = rows + excluded.rows,
                 first_partition = min(coalesce(first_partition, excluded.first_partition),
                                       coalesce(excluded.first_partition, first_partition)),
                 last_partition = max(coalesce(last_partition, excluded.last_partition),
                                      coalesce(excluded.last_partition, last_partition))
             RETURNING files",
        )?
        .query_row(params![database, measurement, schema_id.as_bytes(), rows, partition], |r| {
            r.get(0)
        })?;
    Ok(before.filter(|_| files == 1).map(|before| SchemaChange {
        database,
        measurement,
        landed: landed.to_owned(),
        schema_id: *schema_id,
        before,
    }))
}
