//! A bundle that is a folder: opened without following a link, and nothing in it but what is
//! declared.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, Read};
use std::path::Path;

use super::{ENTRIES_MAX, OpenError, Reopen};
use crate::entry::{Line, Lines};
use crate::header::HEADER_MAX_BYTES;
use crate::path::printable;
use crate::platform::{self, Root};
use crate::stream::{DATA, ENTRIES, HEADER, SIGNATURE};

/// What a hub writes beside them.
pub const ANSWER: [&str; 3] = ["ack.json", "ack.sig", "outcomes.jsonl"];
/// How deep folders may nest; a path has at most half as many bytes as this has names.
const DEPTH_MAX: usize = 600;

/// A file of the bundle, opened; never through a link.
pub(super) fn open(root: &Root, member: &str) -> Result<std::fs::File, OpenError> {
    root.open_regular(member).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
            OpenError::Missing { member: member.to_owned() }
        }
        std::io::ErrorKind::InvalidInput => not_a_file(member, "no regular file"),
        _ if platform::is_link(&source) => not_a_file(member, "behind a symbolic link"),
        _ => OpenError::Io { path: root.path().join(member), source },
    })
}

fn not_a_file(member: &str, what: &'static str) -> OpenError {
    OpenError::NotAFile { member: member.to_owned(), what }
}

/// All of a small file.
fn small(root: &Root, member: &str, max: u64) -> Result<Vec<u8>, OpenError> {
    let mut bytes = Vec::new();
    let file = open(root, member)?;
    file.take(max + 1).read_to_end(&mut bytes).map_err(OpenError::io(root.path().join(member)))?;
    if bytes.len() as u64 > max {
        let (name, size) = (member.to_owned(), bytes.len() as u64);
        return Err(crate::archive::ArchiveError::TooLarge { name, size, max }.into());
    }
    Ok(bytes)
}

pub(super) fn head(root: &Root) -> Result<super::Head, OpenError> {
    let path = || root.path().to_owned();
    let sig = match small(root, SIGNATURE, 64) {
        Err(OpenError::Missing { .. }) if root.metadata(DATA.trim_end_matches('/')).is_ok() => {
            return Err(OpenError::Unfinished { path: path() });
        }
        Err(OpenError::Missing { .. }) => {
            return Err(OpenError::NotABundle { path: path(), why: no_bundle(root.path()) });
        }
        other => other?,
    };
    super::Head::parse(small(root, HEADER, HEADER_MAX_BYTES as u64)?, sig)
}

/// What a folder is that is no bundle: perhaps the drive itself.
fn no_bundle(folder: &Path) -> String {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.map(|n| n.file_name().to_string_lossy().into_owned());
    let mut bundles: Vec<String> = names.filter(|n| n.starts_with("bundle-")).collect();
    bundles.sort();
    match bundles.first() {
        Some(first) => format!(
            "it holds {} of them, name one, such as {}",
            bundles.len(),
            printable(&folder.join(first).display().to_string())
        ),
        None => "it has no manifest.sig".to_owned(),
    }
}

pub(super) fn entries(root: &Root) -> Result<Box<dyn BufRead + Send>, OpenError> {
    Ok(Box::new(std::io::BufReader::with_capacity(64 * 1024, open(root, ENTRIES)?)))
}

/// The size of a member as it stands there.
pub(super) fn sized(root: &Root, line: &Line) -> Result<(std::fs::File, String), OpenError> {
    let member = line.member();
    let file = open(root, &member)?;
    let found = file.metadata().map_err(OpenError::io(root.path().join(&member)))?.len();
    let expected = line.entry.size_bytes;
    match found == expected {
        true => Ok((file, member)),
        false => Err(OpenError::Size { member, expected, found }),
    }
}

/// Holds when nothing stands in the folder but regular files that are declared, as many as are.
///
/// The files themselves are opened by name elsewhere; as many as declared are then those declared.
pub(super) fn nothing_else(root: &Root, count: u64, all: &Reopen) -> Result<(), OpenError> {
    let mut found = 0;
    walk(root.path(), &mut |name| {
        let is_data = name.starts_with(DATA);
        // Also an answer whose writing was cut short.
        let answer = name.strip_suffix(".part").unwrap_or(name);
        let is_ours = [HEADER, SIGNATURE, ENTRIES].contains(&name) || ANSWER.contains(&answer);
        found += u64::from(is_data);
        match is_data || is_ours {
            true => Ok(()),
            false => Err(OpenError::Undeclared { member: name.to_owned() }),
        }
    })?;
    if found <= count {
        return Ok(());
    }
    // Only now is it worth to know which one.
    let hashing = RandomState::new();
    let mut declared = Vec::new();
    let mut lines = Lines::new(all().map_err(OpenError::io(ENTRIES))?, ENTRIES_MAX);
    while let Some(line) = lines.next_line()? {
        declared.push(hashing.hash_one(line.member()));
    }
    declared.sort_unstable();
    walk(root.path(), &mut |name| match name.starts_with(DATA)
        && declared.binary_search(&hashing.hash_one(name)).is_err()
    {
        true => Err(OpenError::Undeclared { member: name.to_owned() }),
        false => Ok(()),
    })
}

/// Visits every regular file below a folder by its name; anything else but a folder is refused.
pub fn walk(
    folder: &Path,
    visit: &mut dyn FnMut(&str) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    below(folder, String::new(), 0, visit)
}

fn below(
    folder: &Path,
    prefix: String,
    depth: usize,
    visit: &mut dyn FnMut(&str) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    if depth > DEPTH_MAX {
        return Err(not_a_file(&prefix, "a folder that nests too deep"));
    }
    for item in std::fs::read_dir(folder).map_err(OpenError::io(folder))? {
        let item = item.map_err(OpenError::io(folder))?;
        let os_name = item.file_name();
        let name = format!("{prefix}{}", os_name.to_string_lossy());
        let kind = item.file_type().map_err(OpenError::io(item.path()))?;
        if os_name.to_str().is_none() {
            return Err(OpenError::Undeclared { member: name });
        }
        if kind.is_dir() {
            below(&item.path(), format!("{name}/"), depth + 1, visit)?;
        } else if kind.is_file() {
            visit(&name)?;
        } else {
            let what =
                if kind.is_symlink() { "a symbolic link" } else { "a device, socket or FIFO" };
            return Err(not_a_file(&name, what));
        }
    }
    Ok(())
}
