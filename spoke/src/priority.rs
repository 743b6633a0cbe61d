//! How urgent a file is, by globs on its path below the source: `[[priority]]` of `spoke.toml`.

use globset::GlobMatcher;
use serde::{Deserialize, Serialize};

use crate::select;

/// The class of a file that no glob names.
pub const ORDINARY: u32 = 100;
/// The highest class, which goes last.
pub const CLASS_MAX: u32 = 1_000;

/// One `[[priority]]`: files that match go with this class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Priority {
    /// A glob such as `alarms/**`.
    #[serde(rename = "match")]
    pub glob: String,
    /// 0 to 1000; lower goes first, and what no glob names has 100.
    pub class: u32,
}

/// The classes of all files.
#[derive(Clone, Debug, Default)]
pub struct Priorities(Vec<(GlobMatcher, u32)>);

impl Priorities {
    /// Refuses a glob that is none, and a class over [`CLASS_MAX`].
    pub fn new(given: &[Priority]) -> Result<Self, String> {
        let one = |p: &Priority| {
            if p.class > CLASS_MAX {
                return Err(format!("class = {} of {:?}: 0 to {CLASS_MAX}", p.class, p.glob));
            }
            Ok((select::glob(&p.glob)?.compile_matcher(), p.class))
        };
        given.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    /// The class that the first glob gives that matches; [`ORDINARY`] when none does.
    pub fn class(&self, path: &str) -> u32 {
        self.0.iter().find(|(glob, _)| glob.is_match(path)).map_or(ORDINARY, |(_, class)| *class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_glob_that_matches_gives_the_class() {
        let given = |glob: &str, class| Priority { glob: glob.to_owned(), class };
        let p = Priorities::new(&[given("alarms/**", 1), given("*/bulk/**", 500)]).unwrap();
        assert_eq!(p.class("alarms/bulk/a.parquet"), 1);
        assert_eq!(p.class("factory/bulk/a.parquet"), 500);
        assert_eq!(p.class("factory/line/a.parquet"), ORDINARY);
        assert!(Priorities::new(&[given("[", 1)]).unwrap_err().contains("no glob"));
        assert!(Priorities::new(&[given("a", 1001)]).unwrap_err().contains("1000"));
    }
}
