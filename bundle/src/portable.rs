//! Under which name a file stands on a drive: its own where every drive can hold it, else one made
//! of its digest.
//!
//! The strictest drive is FAT: it folds case, and refuses reserved characters, device names, and a
//! dot or blank at a name's end. Some systems also change the Unicode form of names (HFS+ writes
//! NFD), so only ASCII names stand as they are.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use crate::digest::Sha256Digest;
use crate::id::is_device_name;
use crate::path::FilePath;
use crate::stream::DATA;

const RESERVED: &str = "<>:\"|?*";
const RENAMED: &str = "renamed";

/// The member's name of a file that cannot stand under its own: `data/renamed/ab/{SHA-256 of the
/// path}`.
pub fn stored_as(path: &FilePath) -> String {
    let digest = Sha256Digest::of(path.as_str().as_bytes()).to_string();
    format!("{DATA}{RENAMED}/{}/{digest}", &digest[..2])
}

/// Whether every drive can hold the path by itself, other names apart.
pub fn is_portable(path: &FilePath) -> bool {
    let is_good = |segment: &str| {
        segment.is_ascii()
            && !segment.contains(|c| RESERVED.contains(c))
            && !segment.ends_with(['.', ' '])
            && !is_device_name(segment)
    };
    // The folder of the renamed is for them alone.
    let first = path.segments().next().unwrap_or_default();
    path.segments().all(is_good) && !first.eq_ignore_ascii_case(RENAMED)
}

/// Which names of a drive are taken, ignoring case: the first of two that differ in case alone
/// stands, the other is stored under its digest.
///
/// Paths come in path order, so what lies in one folder comes together, and of two twins the one
/// with the capital comes first: memory follows the names with capitals in the folders that are open.
#[derive(Default)]
pub struct Names {
    hashing: RandomState,
    /// The folders down to the last path, each with its name and what stands in it.
    open: Vec<Level>,
}

#[derive(Default)]
struct Level {
    /// Of the folder itself; empty at the top.
    name: String,
    /// Hash of a folded name to that of the name as it was first written. Two names that share a
    /// hash cost one of them its name.
    taken: HashMap<u64, u64>,
}

impl Names {
    pub fn new() -> Self {
        Self { open: vec![Level::default()], ..Self::default() }
    }

    /// The member's name where it is another than `data/{path}`; paths come in path order.
    pub fn place(&mut self, path: &FilePath) -> Option<String> {
        if !is_portable(path) {
            return Some(stored_as(path));
        }
        let mut depth = 0;
        let mut segments = path.segments().peekable();
        while let Some(segment) = segments.next() {
            let is_folder = segments.peek().is_some();
            let is_open = self.open.get(depth + 1).is_some_and(|l| l.name == segment);
            if !(is_folder && is_open) {
                self.open.truncate(depth + 1);
                if !self.takes(depth, segment) {
                    return Some(stored_as(path));
                }
                if is_folder {
                    self.open.push(Level { name: segment.to_owned(), ..Level::default() });
                }
            }
            depth += 1;
        }
        None
    }

    /// Whether a name may stand in a folder beside what stands there.
    fn takes(&mut self, depth: usize, name: &str) -> bool {
        let folded = name.to_ascii_lowercase();
        let (key, own) = (self.hashing.hash_one(&folded), self.hashing.hash_one(name));
        let taken = &mut self.open[depth].taken;
        if folded == name {
            // All that it could meet has come before.
            return !taken.contains_key(&key);
        }
        *taken.entry(key).or_insert(own) == own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_drive_cannot_hold_are_stored_under_their_digest() {
        let is_portable = |text: &str| is_portable(&text.parse().unwrap());
        for good in ["a/b/2024/03/31/02/x.parquet", "m=1/A B/%20.parquet", "a.b/c~1.parquet"] {
            assert!(is_portable(good), "{good}");
        }
        for bad in [
            "02:15.parquet",
            "a?/x.parquet",
            "con/x.parquet",
            "a/NUL.parquet",
            "dot./x.parquet",
            "blank /x.parquet",
            "caf\u{e9}.parquet",
            "Renamed/x.parquet",
            "a|b.parquet",
        ] {
            assert!(!is_portable(bad), "{bad}");
        }
    }

    #[test]
    fn of_names_that_differ_in_case_alone_the_first_stands_and_all_have_a_place() {
        let mut paths: Vec<FilePath> = [
            "A/x.parquet",
            "A/z/q.parquet",
            "a/x.parquet",
            "a/y.parquet",
            "b/X.parquet",
            "b/s/one.parquet",
            "b/x.parquet",
            "b/z.parquet",
            "c/only.parquet",
        ]
        .map(|p| p.parse().unwrap())
        .into();
        paths.sort();
        let mut names = Names::new();
        let mut renamed = Vec::new();
        let mut folded = std::collections::HashSet::new();
        for path in &paths {
            let place = names.place(path);
            if place.is_some() {
                renamed.push(path.as_str());
            }
            let member = place.unwrap_or_else(|| format!("{DATA}{path}"));
            assert!(folded.insert(member.to_ascii_lowercase()), "{member}");
        }
        assert_eq!(renamed, ["a/x.parquet", "a/y.parquet", "b/x.parquet"]);
    }
}
