//! Reads about what footers say.

use std::collections::{BTreeMap, BTreeSet};

use barque_bundle::wire::{Column, MeasurementSchemas, SchemaLine};
use barque_bundle::{Sha256Digest, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{HeldRow, digest, held_row, signed, unsigned, wrap};
use crate::error::Error;
use crate::manifest::apply::OTHER_SCHEMAS as OTHER;

/// Files that a node brought in and whose footers nobody has looked at yet, by file id.
pub fn undescribed(
    c: &Connection,
    node_id: u64,
    after_file: u64,
    limit: u32,
) -> Result<Vec<HeldRow>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT f.file_id AS cursor, f.path, f.sha256, f.size_bytes, h.stage_no
             FROM files f LEFT JOIN holders h ON h.file_id = f.file_id AND h.node_id = ?1
             WHERE f.origin_node = ?1 AND f.file_id > ?2
               AND f.state = 'held' AND f.rows IS NULL AND f.unread IS NULL
             ORDER BY f.file_id LIMIT ?3",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map(params![signed(node_id), signed(after_file), limit], held_row)
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

pub fn undescribed_count(c: &Connection) -> Result<u64, Error> {
    c.query_row(
        "SELECT count(*) FROM files WHERE state = 'held' AND rows IS NULL AND unread IS NULL",
        [],
        |r| r.get::<_, i64>(0).map(unsigned),
    )
    .map_err(wrap())
}

/// The columns of a schema; none when the manifest does not hold it.
pub fn columns(c: &Connection, schema_id: &Sha256Digest) -> Result<Option<Vec<Column>>, Error> {
    let text: Option<String> = c
        .prepare_cached("SELECT columns FROM schemas WHERE schema_id = ?1")
        .and_then(|mut s| s.query_row([schema_id.as_bytes()], |r| r.get(0)).optional())
        .map_err(wrap())?;
    text.map(|t| serde_json::from_str(&t).map_err(|_| super::malformed("columns"))).transpose()
}

type Name = (String, String);

/// A page of measurements whose `database/measurement` starts with a prefix, behind a name.
pub struct SchemasPage<'a> {
    pub prefix: &'a str,
    pub after: &'a str,
    pub limit: u32,
}

/// The schemas of each measurement of a page, by name.
pub fn schemas(c: &Connection, page: &SchemasPage<'_>) -> Result<Vec<MeasurementSchemas>, Error> {
    let mut measurements = Vec::new();
    for name in names(c, page)? {
        let mut m = empty(&name);
        m.schemas = lines(c, &name)?;
        m.unread_files = unread(c, &name)?;
        m.differing = differing(m.schemas.iter().map(|s| s.columns.as_slice()));
        measurements.push(m);
    }
    Ok(measurements)
}

fn names(c: &Connection, page: &SchemasPage<'_>) -> Result<Vec<Name>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT database, measurement FROM (
                 SELECT database, measurement FROM measurement_schemas
                 UNION SELECT coalesce(database, ''), coalesce(measurement, '')
                       FROM files WHERE unread IS NOT NULL)
             WHERE substr(database || '/' || measurement, 1, length(?1)) = ?1
               AND database || '/' || measurement > ?2
             ORDER BY database || '/' || measurement LIMIT ?3",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map(params![page.prefix, page.after, page.limit], |r| Ok((r.get(0)?, r.get(1)?)))
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

fn empty((database, measurement): &Name) -> MeasurementSchemas {
    let named = |text: &String| (!text.is_empty()).then(|| text.clone());
    MeasurementSchemas {
        database: named(database),
        measurement: named(measurement),
        schemas: Vec::new(),
        differing: Vec::new(),
        unread_files: 0,
    }
}

fn lines(c: &Connection, (database, measurement): &Name) -> Result<Vec<SchemaLine>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT m.*, coalesce(s.columns, '[]') AS columns
             FROM measurement_schemas m LEFT JOIN schemas s ON s.schema_id = m.schema_id
             WHERE database = ?1 AND measurement = ?2
             ORDER BY first_partition, m.schema_id",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map([database, measurement], |r| {
            let time = |column: &str| -> rusqlite::Result<Option<Timestamp>> {
                Ok(r.get::<_, Option<i64>>(column)?.map(Timestamp::from_unix_ms))
            };
            let columns: String = r.get("columns")?;
            let schema_id = digest(r, "schema_id")?;
            Ok(SchemaLine {
                schema_id: (*schema_id.as_bytes() != OTHER).then_some(schema_id),
                files: unsigned(r.get("files")?),
                rows: unsigned(r.get("rows")?),
                first_partition: time("first_partition")?,
                last_partition: time("last_partition")?,
                columns: serde_json::from_str(&columns)
                    .map_err(|_| rusqlite::Error::InvalidQuery)?,
            })
        })
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

fn unread(c: &Connection, (database, measurement): &Name) -> Result<u64, Error> {
    // An empty name stands for none.
    c.prepare_cached(
        "SELECT count(*) FROM files WHERE unread IS NOT NULL
           AND database IS nullif(?1, '') AND measurement IS nullif(?2, '')",
    )
    .and_then(|mut s| s.query_row([database, measurement], |r| r.get(0).map(unsigned)))
    .map_err(wrap())
}

/// Columns that have one type in one schema and another in another, by name.
pub fn differing<'a>(schemas: impl Iterator<Item = &'a [Column]>) -> Vec<String> {
    let mut types: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for column in schemas.flatten() {
        types.entry(&column.path).or_default().insert((&column.physical, &column.logical));
    }
    types.into_iter().filter(|(_, t)| t.len() > 1).map(|(path, _)| path.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_differs_by_its_type_and_not_by_being_absent_or_optional() {
        let column = |path: &str, physical: &str, repetition: &str| Column {
            path: path.to_owned(),
            physical: physical.to_owned(),
            logical: String::new(),
            repetition: repetition.to_owned(),
        };
        let a = [column("time", "INT64", "REQUIRED"), column("v", "DOUBLE", "OPTIONAL")];
        let b = [column("time", "INT64", "OPTIONAL"), column("v", "INT64", "OPTIONAL")];
        let c = [column("time", "INT64", "REQUIRED")];
        assert_eq!(differing([&a[..], &b, &c].into_iter()), ["v"]);
        assert!(differing([&a[..], &c].into_iter()).is_empty());
    }
}
