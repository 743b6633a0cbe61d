//! What each pass came to: the last 1,000 of them.

use barque_bundle::{HubId, Timestamp};
use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::{Ledger, signed, unsigned};
use crate::budget::Period;
use crate::error::Error;

/// Passes that are kept.
pub const KEPT: u64 = 1_000;

/// The counts of a pass, as its report names them; they close as the report's do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub discovered: u64,
    pub present: u64,
    pub sent: u64,
    pub bytes_sent: u64,
    pub conflict: u64,
    pub modified: u64,
    pub failed: u64,
    pub skipped: u64,
    pub not_settled: u64,
    pub left: u64,
}

/// One pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassRow {
    /// Absent for one of before hubs were noted.
    pub hub_id: Option<HubId>,
    pub started_at: Timestamp,
    /// Absent while it runs, and for one that was killed.
    pub ended_at: Option<Timestamp>,
    pub duration_ms: Option<u64>,
    #[serde(flatten)]
    pub counts: Counts,
    pub exit_code: Option<u8>,
    /// Why it ended before all was sent, or with an error.
    pub reason: Option<String>,
}

/// How a pass ended.
#[derive(Clone, Debug, Default)]
pub struct PassEnd {
    pub counts: Counts,
    pub exit_code: u8,
    pub reason: Option<String>,
}

impl Ledger {
    /// Notes that a pass begins; its number. The caller holds the lock, so no other pass runs.
    pub fn begin_pass(&mut self, hub_id: HubId, now: Timestamp) -> Result<u64, Error> {
        self.transaction(|c| {
            // One without an end was ended from outside.
            c.execute(
                "UPDATE passes SET reason = 'interrupted' WHERE ended_at IS NULL AND reason IS NULL",
                [],
            )?;
            c.execute(
                "INSERT INTO passes (started_at, hub_id) VALUES (?1, ?2)",
                params![now.unix_ms(), hub_id.to_string()],
            )?;
            let pass = unsigned(c.last_insert_rowid());
            c.execute("DELETE FROM passes WHERE pass_id <= ?1", [signed(pass) - signed(KEPT)])?;
            Ok(pass)
        })
    }

    /// One that did nothing and called nobody is not listed.
    pub fn forget_pass(&mut self, pass: u64) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute("DELETE FROM passes WHERE pass_id = ?1", [signed(pass)]).map(drop)
        })
    }

    pub fn end_pass(&mut self, pass: u64, end: &PassEnd, now: Timestamp) -> Result<(), Error> {
        let counts = serde_json::to_string(&end.counts).unwrap_or_default();
        self.transaction(|c| {
            c.execute(
                "UPDATE passes SET ended_at = ?2, counts = ?3, exit_code = ?4, reason = ?5
                 WHERE pass_id = ?1",
                params![signed(pass), now.unix_ms(), counts, end.exit_code, end.reason],
            )
            .map(drop)
        })
    }

    /// Adds bytes to what was spent on a day; days of before last month are forgotten.
    pub fn add_spent(&mut self, at: Timestamp, bytes: u64) -> Result<(), Error> {
        const KEPT_MS: i64 = 70 * 86_400_000;
        let (day, oldest) = (Period::Day.name(at), Period::Day.name(at.plus_ms(-KEPT_MS)));
        self.transaction(|c| {
            c.execute(
                "INSERT INTO spent (day, bytes) VALUES (?1, ?2)
                 ON CONFLICT (day) DO UPDATE SET bytes = bytes + excluded.bytes",
                params![day, signed(bytes)],
            )?;
            c.execute("DELETE FROM spent WHERE day < ?1", [oldest]).map(drop)
        })
    }

    /// What was spent in a day or month, named as [`Period::name`] does.
    pub fn spent_in(&self, period: &str) -> Result<u64, Error> {
        self.connection
            .query_row(
                "SELECT coalesce(sum(bytes), 0) FROM spent WHERE substr(day, 1, length(?1)) = ?1",
                [period],
                |r| r.get(0).map(unsigned),
            )
            .map_err(self.wrap())
    }

    /// Passes, newest first, at most `limit`.
    pub fn passes(&self, limit: u64) -> Result<Vec<PassRow>, Error> {
        let mut statement = self
            .connection
            .prepare("SELECT * FROM passes ORDER BY pass_id DESC LIMIT ?1")
            .map_err(self.wrap())?;
        let rows = statement
            .query_map([signed(limit)], |r| {
                let started_at: i64 = r.get("started_at")?;
                let ended_at: Option<i64> = r.get("ended_at")?;
                let counts: String = r.get("counts")?;
                let hub_id: Option<String> = r.get("hub_id")?;
                Ok(PassRow {
                    hub_id: hub_id.and_then(|h| h.parse().ok()),
                    started_at: Timestamp::from_unix_ms(started_at),
                    ended_at: ended_at.map(Timestamp::from_unix_ms),
                    // A clock that was set back in between gives no duration.
                    duration_ms: ended_at.and_then(|e| u64::try_from(e - started_at).ok()),
                    counts: serde_json::from_str(&counts).unwrap_or_default(),
                    exit_code: r.get("exit_code")?,
                    reason: r.get("reason")?,
                })
            })
            .map_err(self.wrap())?;
        rows.collect::<Result<_, _>>().map_err(self.wrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thousand_passes_are_kept_and_one_that_was_killed_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        let at = Timestamp::from_unix_ms;
        for n in 0..1_005 {
            let pass = ledger.begin_pass(HubId::new(at(1), [1; 10]), at(10 * n)).unwrap();
            let counts = Counts { discovered: pass, left: pass, ..Counts::default() };
            let end = PassEnd { counts, exit_code: 75, reason: Some("hub_not_reached".into()) };
            if n != 1_003 {
                ledger.end_pass(pass, &end, at(10 * n + 7)).unwrap();
            }
        }
        let passes = ledger.passes(5_000).unwrap();
        assert_eq!(passes.len(), 1_000);
        assert_eq!((passes[0].started_at, passes[0].duration_ms), (at(10_040), Some(7)));
        assert_eq!((passes[0].exit_code, passes[0].counts.left), (Some(75), 1_005));
        assert_eq!(passes[1].reason.as_deref(), Some("interrupted"));
        assert_eq!((passes[1].ended_at, passes[1].exit_code), (None, None));
    }
}
