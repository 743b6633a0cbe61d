//! Rules of the repository as tests: crate edges, file sizes, names that docs promise.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Asked at run time: a shared build folder may hold a binary that another clone made.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    here.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

const CRATES: [&str; 6] = ["bundle", "spoke", "raft", "hub", "cli", "tests"];

/// All Rust files of the workspace by their path.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for name in CRATES {
        let mut folders = vec![root().join(name)];
        while let Some(folder) = folders.pop() {
            for item in fs::read_dir(&folder).unwrap() {
                let path = item.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let name = path.strip_prefix(root()).unwrap().display().to_string();
                    found.push((name, fs::read_to_string(&path).unwrap()));
                }
            }
        }
    }
    assert!(found.len() > 50);
    found
}

/// The dependencies of a crate's manifest, of the kind asked for.
fn dependencies(name: &str, kind: &str) -> BTreeSet<String> {
    let manifest: toml::Table = read(&format!("{name}/Cargo.toml")).parse().unwrap();
    let table = manifest.get(kind).and_then(toml::Value::as_table);
    table.map(|t| t.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn crates_depend_on_each_other_only_along_the_drawn_edges() {
    for (name, allowed) in [
        ("bundle", &[][..]),
        ("raft", &[]),
        ("spoke", &["barque-bundle"]),
        ("hub", &["barque-bundle", "barque-raft"]),
        ("cli", &["barque-bundle", "barque-hub", "barque-spoke"]),
        ("tests", &["barque-bundle", "barque-hub", "barque-raft", "barque-spoke"]),
    ] {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for dependency in dependencies(name, kind).iter().filter(|d| d.starts_with("barque")) {
                assert!(allowed.contains(&dependency.as_str()), "{name} must not use {dependency}");
            }
        }
    }
}

#[test]
fn a_library_is_known_only_where_it_belongs() {
    for (library, homes) in [
        ("openraft", &["raft/"][..]),
        ("axum", &["hub/"]),
        ("clap", &["cli/"]),
        ("anyhow", &["cli/", "tests/"]),
        ("reqwest", &["spoke/src/hub_client.rs", "hub/src/client.rs"]),
        ("rustix", &["bundle/src/platform.rs"]),
    ] {
        for (path, text) in sources() {
            let uses =
                text.contains(&format!("use {library}")) || text.contains(&format!("{library}::"));
            let at_home = homes.iter().any(|h| path.starts_with(h)) || path == "tests/tidy.rs";
            assert!(!uses || at_home, "{path} must not know {library}");
        }
    }
}

/// Files over 600 lines, each with its reason.
const LONG_FILES: [(&str, &str); 0] = [];

#[test]
fn files_stay_below_600_lines() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        let has_reason = LONG_FILES.iter().any(|(p, _)| *p == path);
        assert!(lines <= 600 || has_reason, "{path} has {lines} lines: find it a second room");
        let is_lib = path.ends_with("src/lib.rs");
        assert!(!is_lib || lines <= 60, "{path} has {lines} lines; a lib.rs is words and modules");
    }
}

#[test]
fn every_source_file_says_what_it_is_for() {
    for (path, text) in sources() {
        let is_test_module = path.ends_with("/tests.rs");
        assert!(is_test_module || text.starts_with("//!"), "{path} does not start with //!");
    }
}

/// Names of tests that a document promises in backquotes, in table rows or list items.
fn promised(document: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in read(document).lines().filter(|l| l.starts_with('|') || l.starts_with('-')) {
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_test = quoted.len() > 16
                && quoted.contains('_')
                && quoted
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if is_test {
                names.insert(quoted.to_owned());
            }
        }
    }
    names
}

fn all_functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in sources() {
        for line in text.lines() {
            let line = line.trim_start().trim_start_matches("async ");
            if let Some(rest) = line.strip_prefix("fn ") {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                names.extend(name.map(str::to_owned));
            }
        }
    }
    names
}

#[test]
fn every_test_that_a_document_promises_exists() {
    let functions = all_functions();
    for (document, least) in [("docs/PROMISES.md", 30), ("docs/CASES.md", 9)] {
        let promised = promised(document);
        assert!(promised.len() >= least, "{document} promises only {}", promised.len());
        for name in promised {
            assert!(functions.contains(&name), "{document} promises {name}, which does not exist");
        }
    }
}

#[test]
fn every_field_case_of_this_far_has_a_line() {
    let text = read("docs/CASES.md");
    for case in [
        "SP-01", "SP-02", "SP-03", "SP-05", "SP-06", "SP-08", "SP-09", "HB-07", "PQ-01", "PQ-02",
        "PQ-03", "OP-01", "OP-05", "OP-06",
    ] {
        assert!(text.lines().any(|l| l.starts_with(&format!("| {case}"))), "{case}");
    }
}

#[test]
fn every_process_test_is_run() {
    for (path, text) in sources().iter().filter(|(p, _)| p.starts_with("cli/tests/process/")) {
        let squeezed: String = text.split_whitespace().collect();
        for line in text.lines() {
            let Some(name) = line.strip_prefix("fn ").and_then(|l| l.strip_suffix("() {")) else {
                continue;
            };
            let listed = squeezed.contains(&format!("trial!({name})"))
                || squeezed.contains(&format!("trial!({name},"));
            let is_test = name.matches('_').count() >= 3;
            assert!(listed || !is_test, "{path}: {name} is not in trials()");
        }
    }
}

#[test]
fn the_documents_that_a_user_needs_are_there_and_name_every_verb() {
    for path in [
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "docs/ARCHITECTURE.md",
        "docs/PROMISES.md",
        "docs/CASES.md",
        "docs/TESTING.md",
        "docs/HTTP.md",
        "docs/OPERATIONS.md",
        ".ci/run",
        "justfile",
    ] {
        assert!(root().join(path).exists(), "{path} is missing");
    }
    let readme = read("README.md");
    for verb in [
        "push",
        "status",
        "passes",
        "config show",
        "config example",
        "enroll",
        "ledger ls",
        "ledger requeue",
        "ledger dismiss",
        "hub init",
        "hub serve",
        "hub spoke add",
        "hub spoke ls",
        "hub spoke show",
        "hub spoke disable",
        "hub spoke enable",
        "hub spoke rm",
        "hub token add",
        "hub token ls",
        "hub token rm",
        "hub files",
        "hub schemas",
        "hub status",
        "hub node add",
        "hub node ls",
        "hub node drain",
        "hub node remove",
        "hub node rotate-token",
        "hub join",
        "hub recover",
        "sample",
        "demo",
    ] {
        assert!(
            readme.contains(&format!("barque {verb}")),
            "README.md does not name barque {verb}"
        );
    }
}

#[test]
fn one_tls_provider_stands_in_the_lock_file() {
    let lock = read("Cargo.lock");
    for banned in ["aws-lc-rs", "aws-lc-sys", "openssl-sys", "native-tls"] {
        assert!(!lock.contains(&format!("name = \"{banned}\"")), "{banned} came in");
    }
    assert!(read("Cargo.toml").contains("openraft = { version = \"=0.9."));
}
