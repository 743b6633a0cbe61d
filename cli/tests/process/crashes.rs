//! The crash table: a real process ends right after each durable step, starts again, and the same
//! command ends as if nothing had happened. A step that is never reached fails.

use std::collections::BTreeMap;

use barque_bundle::fault::Step;
use libtest_mimic::Trial;

use crate::site::{Site, Spoke, pass_of, sized, tiny, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_hub_that_ends_after_any_durable_step_loses_and_doubles_nothing),
        trial!(a_spoke_that_ends_after_storing_a_receipt_sends_nothing_again),
        trial!(no_receipt_covers_a_file_whose_sync_failed_and_the_next_push_is_whole),
        trial!(a_sync_that_fails_within_an_upload_costs_what_came_since_the_one_before),
    ]
}

const HUB_STEPS: [Step; 9] = [
    Step::Staged,
    Step::StagedSynced,
    Step::Proposed,
    Step::Committed,
    Step::Applied,
    Step::Promoted,
    Step::PromotedSynced,
    Step::ReceiptSigned,
    Step::ReceiptSent,
];

fn fill(spoke: &Spoke) {
    for n in 0..6 {
        spoke.put(&format!("d/m/2024/03/31/{n:02}/f.parquet"), &tiny(n));
    }
    spoke.put("d/m/2024/03/01/00/large.parquet", &sized(9, 300_000));
}

/// Everything landed once, is listed so, and is synced.
fn assert_whole(site: &Site, spoke: &Spoke, step: Step) {
    site.assert_landed(&[spoke]);
    let source: BTreeMap<String, (String, u64, String)> = tree(&spoke.source())
        .into_iter()
        .map(|(p, (sha, size))| (format!("s/{p}"), (sha.to_string(), size, "held".to_owned())))
        .collect();
    assert_eq!(site.manifest(), source, "{step:?}");
    let status = spoke.status();
    assert_eq!(status["synced"], 7, "{step:?}: {status}");
    assert_eq!((&status["pending"], &status["in_flight"]), (&0.into(), &0.into()), "{step:?}");
}

fn a_hub_that_ends_after_any_durable_step_loses_and_doubles_nothing() {
    for step in HUB_STEPS {
        let site = Site::new();
        let hub = site.hub();
        let address = hub.address.clone();
        let spoke = site.spoke("s");
        fill(&spoke);
        assert_eq!(hub.stop(), 0);
        let fault = format!("abort-after:{}", step.as_str());
        let hub = site.hub_told(&address, &fault);
        let broken = spoke.push();
        assert!(matches!(broken.code, 0 | 75), "{step:?}: {broken:?}");
        assert_eq!(broken.count("failed"), 0, "{step:?}: {broken:?}");
        assert!(hub.ended_by_signal(), "the step {step:?} was never reached");
        let hub = site.hub_with(&address, &[]);
        let whole = spoke.push();
        assert_eq!((whole.code, whole.count("left")), (0, 0), "{step:?}: {whole:?}");
        assert_eq!(spoke.push().count("sent"), 0, "{step:?}");
        assert_whole(&site, &spoke, step);
        hub.kill();
        let _hub = site.hub_with(&address, &[]);
        assert_eq!(tree(&site.path().join("hub/staging")).len(), 0, "{step:?}");
    }
}

fn a_spoke_that_ends_after_storing_a_receipt_sends_nothing_again() {
    let step = Step::LedgerWritten;
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    fill(&spoke);
    let mut command = spoke.push_command();
    command.env("BARQUE_FAULT", format!("abort-after:{}", step.as_str()));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), None, "the step {step:?} was never reached");
    let whole = pass_of(spoke.push_command().output().unwrap());
    assert_eq!((whole.code, whole.count("sent"), whole.count("left")), (0, 0, 0), "{whole:?}");
    assert_whole(&site, &spoke, step);
    assert_eq!(tree(&site.path().join("hub/staging")).len(), 0, "{step:?}");
}

/// Syncs of one small push at the most; the loop ends at the first that is not reached.
const SYNCS_MAX: u64 = 60;

/// What a push met at a hub with a sync that fails.
struct FailedSync {
    was_reached: bool,
    /// The hub took the bundle back that the sync was for.
    was_condemned: bool,
    wire_bytes: u64,
}

fn two_files(spoke: &Spoke) {
    spoke.put("d/m/2024/03/31/00/a.parquet", &tiny(1));
    spoke.put("d/m/2024/03/31/01/b.parquet", &tiny(2));
}

/// Pushes two files past a failed sync, and once more without it: then both are there.
fn past_a_failed_sync(fault: &str) -> FailedSync {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    two_files(&spoke);
    assert_eq!(hub.stop(), 0);
    let log = || std::fs::read_to_string(site.path().join("hub.log")).unwrap();
    let (mut was_condemned, mut wire_bytes) = (false, 0);
    // A hub whose start meets the fault refuses to start; then there is nothing to push to.
    if let Some(hub) = site.try_hub_told(&address, fault) {
        let pass = spoke.push();
        let landed = tree(&site.landing());
        let synced = spoke.status()["synced"].as_u64().unwrap();
        assert!(synced <= landed.len() as u64, "{fault}: {pass:?} {landed:?}");
        // What a sync that failed before the answer covered is sent again, at the latest by the
        // next pass.
        was_condemned = log().contains("a bundle was not taken whole");
        wire_bytes = pass.count("wire_bytes");
        assert_eq!(pass.count("failed"), 0, "{fault}: {pass:?}");
        hub.kill();
    }
    let was_reached = log().contains(barque_bundle::fault::SYNC_FAULT);
    let _hub = site.hub_with(&address, &[]);
    let whole = spoke.push();
    assert_eq!((whole.code, whole.count("left")), (0, 0), "{fault}: {whole:?}");
    if was_reached {
        let again = whole.count("sent") + whole.count("present");
        assert_eq!((again, spoke.status()["synced"].as_u64()), (2, Some(2)), "{fault}");
    }
    site.assert_landed(&[&spoke]);
    wire_bytes += whole.count("wire_bytes");
    FailedSync { was_reached, was_condemned, wire_bytes }
}

fn no_receipt_covers_a_file_whose_sync_failed_and_the_next_push_is_whole() {
    let once = {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        two_files(&spoke);
        spoke.push().count("wire_bytes")
    };
    let is_sent_again = |fault: &str, met: &FailedSync| {
        let wire = met.wire_bytes;
        assert!(wire > once + once / 2, "{fault}: {wire} bytes, one try is {once}");
    };
    let mut reached = 0;
    for nth in 1..=SYNCS_MAX {
        let fault = format!("fail-sync:{nth}");
        let met = past_a_failed_sync(&fault);
        if !met.was_reached {
            break;
        }
        reached = nth;
        if met.was_condemned {
            is_sent_again(&fault, &met);
        }
    }
    // Two files, the staging folder, and the folders of landing from the files up.
    assert!((8..SYNCS_MAX).contains(&reached), "{reached} syncs were failed");
    // Both staged files and their folder, in whatever groups the hub takes them. The first ten syncs
    // there are the trial that a start makes of the file system, and its eight folders and staging
    // itself.
    for nth in 11..=13 {
        let fault = format!("fail-sync:{nth}:/staging");
        let met = past_a_failed_sync(&fault);
        assert!(met.was_reached && met.was_condemned, "{fault} condemned no bundle");
        is_sent_again(&fault, &met);
    }
}

fn a_sync_that_fails_within_an_upload_costs_what_came_since_the_one_before() {
    // Synced at every 16 MiB: the first is kept, the second fails.
    const SIZE: u64 = 64_000_000;
    const KEPT: u64 = 16 << 20;
    const PIECE_MAX: u64 = 64 << 10;
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/00/large.parquet", &sized(1, usize::try_from(SIZE).unwrap()));
    assert_eq!(hub.stop(), 0);
    let _hub = site.try_hub_told(&address, "fail-sync:2:.partial").unwrap();
    let first = spoke.push();
    let log = std::fs::read_to_string(site.path().join("hub.log")).unwrap();
    assert!(log.contains(barque_bundle::fault::SYNC_FAULT), "{log}");
    let again = spoke.push();
    let through = first.count("sent") + again.count("sent");
    assert_eq!((again.code, through, again.count("left")), (0, 1, 0), "{first:?} {again:?}");
    site.assert_landed(&[&spoke]);
    let resumed = [&first, &again].map(|pass| pass.report["resumed"][0]["offset"].as_u64());
    let offset = resumed.into_iter().flatten().next().unwrap();
    // What the second sync was for goes again, and what the first one covered does not; a sync is
    // asked for behind a whole piece.
    assert!((KEPT..KEPT + PIECE_MAX).contains(&offset), "it went on at {offset}");
}
