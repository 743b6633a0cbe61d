//! Tests of real processes: a hub and spokes as an operator runs them.
//!
//! A test that needs a tool or folder that is absent says so and is counted as ignored.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_links;
mod badnet;
mod balancer;
mod budgets;
mod cases;
mod cluster;
mod cluster_cases;
mod cluster_faults;
mod cluster_import;
mod cluster_kills;
mod cluster_reads;
mod crashes;
mod cut;
mod daemon;
mod drive_crashes;
mod drive_machines;
mod drive_offline;
mod drive_refusals;
mod drives;
mod edge_cases;
mod errors;
mod forge;
mod http;
mod hub_cases;
mod identity;
mod kills;
mod machine;
mod memory;
mod modes;
mod neighbour;
mod netns;
mod nodes;
mod operator;
mod parquet_files;
mod passes;
mod proofs;
mod proxy;
mod readers;
mod several;
mod site;
mod uploads;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let args = Arguments::from_args();
    let trials: Vec<Trial> = [
        passes::trials(),
        identity::trials(),
        cases::trials(),
        parquet_files::trials(),
        readers::trials(),
        modes::trials(),
        operator::trials(),
        cut::trials(),
        uploads::trials(),
        budgets::trials(),
        neighbour::trials(),
        edge_cases::trials(),
        errors::trials(),
        hub_cases::trials(),
        drives::trials(),
        daemon::trials(),
        several::trials(),
        cluster::trials(),
        cluster_import::trials(),
        cluster_faults::trials(),
        cluster_reads::trials(),
        cluster_cases::trials(),
        cluster_kills::trials(),
        bad_links::trials(),
        machine::trials(),
        memory::trials(),
        crashes::trials(),
        proofs::trials(),
        drive_crashes::trials(),
        drive_machines::trials(),
        drive_offline::trials(),
        drive_refusals::trials(),
        kills::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&args, trials).exit();
}

/// A test by the name of its function.
#[macro_export]
macro_rules! trial {
    ($f:ident) => {
        libtest_mimic::Trial::test(stringify!($f), || {
            $f();
            Ok(())
        })
    };
    ($f:ident, needs $lack:expr) => {{
        let lack: Option<String> = $lack;
        if let Some(lack) = &lack {
            println!("skipped: {}: {lack}", stringify!($f));
        }
        $crate::trial!($f).with_ignored_flag(lack.is_some())
    }};
}

/// Why a test that reads the shared folder cannot run, if it cannot.
pub fn lacks_shared(path: &str) -> Option<String> {
    let path = shared(path);
    (!path.exists()).then(|| format!("{} is absent", path.display()))
}

/// A path in the folder beside the project that holds files from elsewhere.
pub fn shared(path: &str) -> std::path::PathBuf {
    here().join("../../shared").join(path)
}

/// The project's own fixtures.
pub fn fixture(path: &str) -> std::path::PathBuf {
    here().join("../fixtures").join(path)
}

/// This package's folder, asked at run time: a shared build folder may hold a binary that another
/// clone made.
pub fn here() -> std::path::PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    here.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}
