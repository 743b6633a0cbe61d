//! Which files a spoke ships at all, by globs on their paths below the source.

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// Globs that choose files. `*` stays within a segment, `**` does not.
#[derive(Clone, Debug, Default)]
pub struct Select {
    include: Option<GlobSet>,
    exclude: GlobSet,
    is_partial: bool,
}

impl Select {
    /// Files that match an `include` (all, when there is none) and no `exclude`.
    ///
    /// `is_partial` says that this is a choice of the moment: what is left out is still to come.
    pub fn new(include: &[String], exclude: &[String], is_partial: bool) -> Result<Self, String> {
        let include = match include {
            [] => None,
            globs => Some(set(globs)?),
        };
        Ok(Self { include, exclude: set(exclude)?, is_partial })
    }

    pub fn takes(&self, path: &str) -> bool {
        self.include.as_ref().is_none_or(|i| i.is_match(path)) && !self.exclude.is_match(path)
    }

    /// Whether files that are left out now are still meant to be shipped.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }
}

fn set(globs: &[String]) -> Result<GlobSet, String> {
    let mut builder = GlobSetBuilder::new();
    for text in globs {
        builder.add(glob(text)?);
    }
    builder.build().map_err(|e| e.to_string())
}

/// A glob in which `*` stays within a segment.
pub(crate) fn glob(text: &str) -> Result<Glob, String> {
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    glob.map_err(|e| format!("{text:?} is no glob such as alarms/**: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_by_an_include_and_left_by_an_exclude() {
        let select = |include: &[&str], exclude: &[&str]| {
            let own = |g: &[&str]| g.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            Select::new(&own(include), &own(exclude), false).unwrap()
        };
        assert!(select(&[], &[]).takes("a/b.parquet"));
        let alarms = select(&["alarms/**"], &["**/debug/**"]);
        assert!(alarms.takes("alarms/m/2024/a.parquet"));
        assert!(!alarms.takes("other/m/a.parquet"));
        assert!(!alarms.takes("alarms/debug/a.parquet"));
        assert!(!select(&["*.parquet"], &[]).takes("a/b.parquet"));
        assert!(Select::new(&["[".to_owned()], &[], false).unwrap_err().contains("no glob"));
    }
}
