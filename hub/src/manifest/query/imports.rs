//! Reads of what was imported from drives, and of what has not arrived.

use std::collections::BTreeMap;

use barque_bundle::wire::{ImportLine, NotArrived};
use barque_bundle::{BundleId, Ranges, SeriesId, SpokeId, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{malformed, signed, time, unsigned, wrap};
use crate::error::Error;

fn line(r: &Row<'_>) -> rusqlite::Result<(u64, ImportLine)> {
    let id: String = r.get("bundle_id")?;
    let number = |column: &str| r.get::<_, i64>(column).map(unsigned);
    let line = ImportLine {
        bundle_id: id.parse().map_err(|_| rusqlite::Error::InvalidQuery)?,
        label: r.get("label")?,
        created_at: time(r, "created_at")?,
        imported_at: time(r, "imported_at")?,
        node: format!("{:016x}", number("node_id")?),
        files: number("files")?,
        bytes: number("bytes")?,
        committed: number("committed")?,
        already_present: number("already_present")?,
        conflicts: number("conflicts")?,
        refused: number("refused")?,
        removed: number("removed")?,
        receipt: None,
    };
    Ok((number("import_no")?, line))
}

/// When and where a bundle was imported, if it was.
pub fn imported(
    c: &Connection,
    spoke: &SpokeId,
    bundle: BundleId,
) -> Result<Option<ImportLine>, Error> {
    c.prepare_cached("SELECT * FROM imported_bundles WHERE spoke_id = ?1 AND bundle_id = ?2")
        .and_then(|mut s| {
            s.query_row([spoke.as_str(), &bundle.to_string()], |r| line(r).map(|(_, l)| l))
                .optional()
        })
        .map_err(wrap())
}

/// Imports of a spoke below a number, newest first, with their numbers.
pub fn imports(
    c: &Connection,
    spoke: &SpokeId,
    before: Option<u64>,
    limit: u32,
) -> Result<Vec<(u64, ImportLine)>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT * FROM imported_bundles WHERE spoke_id = ?1 AND import_no < ?2
             ORDER BY import_no DESC LIMIT ?3",
        )
        .map_err(wrap())?;
    let before = before.map_or(i64::MAX, signed);
    let rows = statement.query_map(params![spoke.as_str(), before, limit], line).map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// Which of these bundles were imported.
pub fn arrived(
    c: &Connection,
    spoke: &SpokeId,
    bundles: impl Iterator<Item = BundleId>,
) -> Result<Vec<BundleId>, Error> {
    let mut found = Vec::new();
    for bundle in bundles {
        if imported(c, spoke, bundle)?.is_some() {
            found.push(bundle);
        }
    }
    Ok(found)
}

/// Numbers that a spoke said were on drives under way and that nothing has answered yet.
pub fn not_arrived(c: &Connection, spoke: &SpokeId) -> Result<Vec<NotArrived>, Error> {
    let mut statement = c
        .prepare_cached("SELECT * FROM in_transit WHERE spoke_id = ?1 ORDER BY bundle_id")
        .map_err(wrap())?;
    let rows = statement
        .query_map([spoke.as_str()], |r| {
            let label: Option<String> = r.get("label")?;
            let row: (String, String, String) =
                (r.get("bundle_id")?, r.get("series")?, r.get("numbers")?);
            Ok((label, time(r, "created_at")?, row))
        })
        .map_err(wrap())?;
    let mut missing = Vec::new();
    for row in rows {
        let (label, created_at, (bundle, series, numbers)) = row.map_err(wrap())?;
        let bundle_id: BundleId = bundle.parse().map_err(|_| malformed("bundle_id"))?;
        let series: SeriesId = series.parse().map_err(|_| malformed("series"))?;
        let numbers: Ranges = serde_json::from_str(&numbers).map_err(|_| malformed("numbers"))?;
        let numbers = unanswered(c, spoke, series, &numbers)?;
        if !numbers.is_empty() {
            let detail = story(spoke, &numbers, label.as_deref(), bundle_id, created_at);
            missing.push(NotArrived { series, numbers, label, bundle_id, created_at, detail });
        }
    }
    Ok(missing)
}

fn story(
    spoke: &SpokeId,
    numbers: &Ranges,
    label: Option<&str>,
    bundle_id: BundleId,
    created_at: Timestamp,
) -> String {
    let parts = numbers.as_slice().iter().map(|(lo, hi)| match lo == hi {
        true => format!("number {lo}"),
        false => format!("numbers {lo} to {hi}"),
    });
    let parts: Vec<String> = parts.collect();
    let day = created_at.to_string();
    let day = day.split('T').next().unwrap_or_default().to_owned();
    let label = label.map_or(String::new(), |l| format!("'{l}', "));
    let is_one = numbers.count() == 1;
    format!(
        "{} of {spoke} {} not arrived; {} on {label}bundle {bundle_id}, made {day}",
        parts.join(", "),
        if is_one { "has" } else { "have" },
        if is_one { "it is" } else { "they are" },
    )
}

/// What is left of a set of numbers once the answered ones are taken out.
fn unanswered(
    c: &Connection,
    spoke: &SpokeId,
    series: SeriesId,
    numbers: &Ranges,
) -> Result<Ranges, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT lo, hi FROM answered WHERE spoke_id = ?1 AND series = ?2
               AND lo <= ?4 AND hi >= ?3 ORDER BY lo",
        )
        .map_err(wrap())?;
    let mut left = Vec::new();
    for (lo, hi) in numbers.as_slice() {
        let rows = statement
            .query_map(params![spoke.as_str(), series.to_string(), signed(*lo), signed(*hi)], |r| {
                Ok((unsigned(r.get(0)?), unsigned(r.get(1)?)))
            })
            .map_err(wrap())?;
        let mut from = *lo;
        for row in rows {
            let (a, b) = row.map_err(wrap())?;
            if a > from {
                left.push((from, a - 1));
            }
            from = from.max(b.saturating_add(1));
        }
        if from <= *hi {
            left.push((from, *hi));
        }
    }
    Ok(Ranges::from_ranges(left))
}

/// Whether any import is claimed.
pub fn has_claims(c: &Connection) -> Result<bool, Error> {
    c.query_row("SELECT EXISTS (SELECT 1 FROM import_claims)", [], |r| r.get(0)).map_err(wrap())
}

/// How often each claim was renewed, by its number.
pub fn claim_renewals(c: &Connection) -> Result<BTreeMap<u64, u64>, Error> {
    let mut statement =
        c.prepare_cached("SELECT number, renewals FROM import_claims").map_err(wrap())?;
    let rows = statement
        .query_map([], |r| Ok((unsigned(r.get(0)?), unsigned(r.get(1)?))))
        .map_err(wrap())?;
    rows.map(|r| r.map_err(wrap())).collect()
}
