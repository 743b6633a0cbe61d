//! What the ledger does not keep for ever: rows of files that are gone, receipts that no row rests
//! on, voids that were told; and how large bodies may be, which is remembered for a week.

use std::collections::HashMap;

use barque_bundle::{FilePath, HubId, Timestamp};
use rusqlite::params;

use super::{Ledger, signed, unsigned};
use crate::error::Error;

const DAY_MS: i64 = 86_400_000;
/// How long a row is kept once its file is gone.
const KEPT_MS: i64 = 90 * DAY_MS;
/// How long a limit on bodies is believed.
const BODIES_MS: i64 = 7 * DAY_MS;
const PAGE: u64 = 1_000;
/// States in which nothing waits: for a receipt, or for a person.
const AT_REST: &str = "('synced', 'skipped', 'removed', 'dismissed')";

impl Ledger {
    /// Once a day, notes which files are gone and drops the rows of those that have been for 90
    /// days; how many that was. Times are the hub's.
    ///
    /// A file that comes back afterwards is hashed again and found present.
    pub fn forget_what_is_gone(
        &mut self,
        hub_id: HubId,
        is_there: impl Fn(&FilePath) -> bool,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let hub = hub_id.to_string();
        let checked: Option<i64> = self
            .connection
            .query_row("SELECT rows_checked FROM hubs WHERE hub_id = ?1", [&hub], |r| r.get(0))
            .map_err(self.wrap())?;
        // A clock that jumped makes it due as well.
        if checked.is_some_and(|c| (0..DAY_MS).contains(&(now.unix_ms() - c))) {
            return Ok(0);
        }
        // The rows of a new ledger are of files that were there just now; in one that an older
        // version made it begins a day later.
        if checked.is_none() {
            return self.set_rows_checked(&hub, now).map(|()| 0);
        }
        let (mut after, mut forgotten) = (String::new(), 0);
        loop {
            let page = self.at_rest(&hub, &after)?;
            let Some((last, _)) = page.last() else { break };
            after.clone_from(last);
            forgotten += self.note_gone(&hub, &page, &is_there, now)?;
        }
        self.transaction(|c| {
            c.execute("DELETE FROM voids WHERE hub_id = ?1 AND told = 1", [&hub])
        })?;
        self.set_rows_checked(&hub, now)?;
        self.drop_receipts(now)?;
        Ok(forgotten)
    }

    fn set_rows_checked(&mut self, hub: &str, now: Timestamp) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute(
                "UPDATE hubs SET rows_checked = ?2 WHERE hub_id = ?1",
                params![hub, now.unix_ms()],
            )
            .map(drop)
        })
    }

    /// Rows in which nothing waits, by name, with when their file was first found gone.
    fn at_rest(&self, hub: &str, after: &str) -> Result<Vec<(String, Option<i64>)>, Error> {
        let sql = format!(
            "SELECT path, gone_since FROM files
             WHERE hub_id = ?1 AND path > ?2 AND state IN {AT_REST} ORDER BY path LIMIT ?3"
        );
        self.rows(&sql, params![hub, after, signed(PAGE)], |r| Ok((r.get(0)?, r.get(1)?)))
    }

    fn note_gone(
        &mut self,
        hub: &str,
        page: &[(String, Option<i64>)],
        is_there: &impl Fn(&FilePath) -> bool,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let mut changes = Vec::new();
        for (path, since) in page {
            let there = path.parse().is_ok_and(|p| is_there(&p));
            match (there, since) {
                (true, None) => {}
                (true, Some(_)) => changes.push((path, None)),
                (false, None) => changes.push((path, Some(now.unix_ms()))),
                (false, Some(since)) if now.unix_ms() - since >= KEPT_MS => {
                    changes.push((path, Some(i64::MIN)));
                }
                (false, Some(_)) => {}
            }
        }
        if changes.is_empty() {
            return Ok(0);
        }
        self.transaction(|c| {
            let mut note = c.prepare_cached(
                "UPDATE files SET gone_since = ?3 WHERE hub_id = ?1 AND path = ?2",
            )?;
            let mut drop_row =
                c.prepare_cached("DELETE FROM files WHERE hub_id = ?1 AND path = ?2")?;
            let mut dropped = 0;
            for (path, gone) in &changes {
                if *gone == Some(i64::MIN) {
                    dropped += drop_row.execute([hub, path.as_str()])? as u64;
                } else {
                    note.execute(params![hub, path.as_str(), gone])?;
                }
            }
            Ok(dropped)
        })
    }

    /// Drops receipts older than 90 days that no row rests on.
    fn drop_receipts(&mut self, now: Timestamp) -> Result<(), Error> {
        let switch = |on: bool| self.connection.pragma_update(None, "foreign_keys", on);
        // The statement itself keeps what the constraint would; the constraint would look through
        // all files once for each receipt.
        switch(false).map_err(self.wrap())?;
        let dropped = self.connection.execute(
            "DELETE FROM receipts WHERE received_at < ?1 AND receipt_id NOT IN
                 (SELECT receipt_id FROM files WHERE receipt_id IS NOT NULL)",
            [now.unix_ms().saturating_sub(KEPT_MS)],
        );
        switch(true).map_err(self.wrap())?;
        dropped.map(drop).map_err(self.wrap())
    }

    /// How large bodies to each address may be, as learned within the last week.
    pub fn body_sizes(&self, now: Timestamp) -> Result<HashMap<String, u64>, Error> {
        let sizes = self.rows(
            "SELECT address, max_bytes FROM bodies WHERE abs(?1 - since) < ?2",
            params![now.unix_ms(), BODIES_MS],
            |r| Ok((r.get(0)?, unsigned(r.get(1)?))),
        )?;
        Ok(sizes.into_iter().collect())
    }

    pub fn set_body_size(
        &mut self,
        address: &str,
        bytes: u64,
        now: Timestamp,
    ) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute(
                "INSERT OR REPLACE INTO bodies (address, max_bytes, since) VALUES (?1, ?2, ?3)",
                params![address, signed(bytes), now.unix_ms()],
            )
            .map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use barque_bundle::{SeriesId, Sha256Digest};

    use super::*;
    use crate::ledger::{Change, StatRow};
    use crate::plan::State;

    #[test]
    fn rows_of_files_that_are_gone_for_ninety_days_are_dropped_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        let start = Timestamp::from_unix_ms(1_000 * DAY_MS);
        let hub_id = HubId::new(start, [1; 10]);
        ledger.add_hub(hub_id, SeriesId::new(start, [1; 10]), 0).unwrap();
        let stat = StatRow { size_bytes: 1, mtime_ns: 1, ctime_ns: 1, inode: 1 };
        let path = |name: &str| -> FilePath { format!("{name}.parquet").parse().unwrap() };
        for name in ["gone", "back", "there"] {
            let left = Change::Leave {
                path: path(name),
                stat,
                state: State::Skipped,
                code: "c".into(),
                detail: "d".into(),
            };
            ledger.record(hub_id, &[left], start).unwrap();
        }
        let sha256 = Sha256Digest::of(b"");
        let waits = Change::Number { path: path("waits"), stat, sha256, class: 100 };
        ledger.record(hub_id, &[waits], start).unwrap();
        let day = |n: i64| start.plus_ms(n * DAY_MS);
        let present = |names: &'static [&'static str]| {
            move |p: &FilePath| names.iter().any(|n| p.as_str() == format!("{n}.parquet"))
        };
        let mut look =
            |n, names| ledger.forget_what_is_gone(hub_id, present(names), day(n)).unwrap();
        // The first time only begins the count of days.
        assert_eq!(look(-1, &[]), 0);
        assert_eq!(look(0, &["there"]), 0);
        // Looked for once a day, and noted as there again when it is.
        assert_eq!(look(0, &[]), 0);
        assert_eq!(look(50, &["there", "back"]), 0);
        assert_eq!(look(89, &["there"]), 0);
        assert_eq!(look(90, &["there"]), 1);
        assert_eq!(look(91, &["there"]), 0);
        assert_eq!(look(179, &["there"]), 1);
        assert!(ledger.file(hub_id, &path("there")).unwrap().is_some());
        assert!(ledger.file(hub_id, &path("waits")).unwrap().is_some());
        assert!(ledger.file(hub_id, &path("gone")).unwrap().is_none());
    }

    #[test]
    fn a_limit_on_bodies_is_remembered_for_a_week() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        let now = Timestamp::from_unix_ms(50 * DAY_MS);
        ledger.set_body_size("https://a", 65_536, now).unwrap();
        assert_eq!(ledger.body_sizes(now.plus_ms(DAY_MS)).unwrap()["https://a"], 65_536);
        assert!(ledger.body_sizes(now.plus_ms(8 * DAY_MS)).unwrap().is_empty());
    }
}
