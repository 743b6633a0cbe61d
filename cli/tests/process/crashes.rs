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

fn no_receipt_covers_a_file_whose_sync_failed_and_the_next_push_is_whole() {
    let (mut reached, mut were_condemned) = (0, 0);
    let once = {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        spoke.put("d/m/2024/03/31/00/a.parquet", &tiny(1));
        spoke.put("d/m/2024/03/31/01/b.parquet", &tiny(2));
        spoke.push().count("wire_bytes")
    };
    for nth in 1..=SYNCS_MAX {
        let site = Site::new();
        let hub = site.hub();
        let address = hub.address.clone();
        let spoke = site.spoke("s");
        spoke.put("d/m/2024/03/31/00/a.parquet", &tiny(1));
        spoke.put("d/m/2024/03/31/01/b.parquet", &tiny(2));
        assert_eq!(hub.stop(), 0);
        // A hub whose start meets the fault refuses to start; then there is nothing to push to.
        let told = site.try_hub_told(&address, &format!("fail-sync:{nth}"));
        let (mut condemned, mut wire) = (false, 0);
        if let Some(hub) = told {
            let pass = spoke.push();
            let landed = tree(&site.landing());
            let synced = spoke.status()["synced"].as_u64().unwrap();
            assert!(synced <= landed.len() as u64, "sync {nth}: {pass:?} {landed:?}");
            // What a sync that failed before the answer covered is sent again, at the latest by the
            // next pass.
            let log = std::fs::read_to_string(site.path().join("hub.log")).unwrap();
            condemned = log.contains("a bundle was not taken whole");
            wire = pass.count("wire_bytes");
            assert_eq!(pass.count("failed"), 0, "sync {nth}: {pass:?}");
            hub.kill();
        }
        let log = std::fs::read_to_string(site.path().join("hub.log")).unwrap();
        if !log.contains(barque_bundle::fault::SYNC_FAULT) {
            break;
        }
        reached = nth;
        let _hub = site.hub_with(&address, &[]);
        let whole = spoke.push();
        assert_eq!((whole.code, whole.count("left")), (0, 0), "sync {nth}: {whole:?}");
        let again = whole.count("sent") + whole.count("present");
        assert_eq!((again, spoke.status()["synced"].as_u64()), (2, Some(2)), "sync {nth}");
        wire += whole.count("wire_bytes");
        assert!(
            !condemned || wire > once + once / 2,
            "sync {nth}: {wire} bytes, one try is {once}"
        );
        were_condemned += u64::from(condemned);
        site.assert_landed(&[&spoke]);
    }
    // Two files, the staging folder, and the folders of landing from the files up.
    assert!((8..SYNCS_MAX).contains(&reached), "{reached} syncs were failed");
    // The first group's file and its folder. On a busy machine the second file comes in a group of
    // its own, whose syncs have other numbers each time, between those of what is made visible.
    assert!(were_condemned >= 2, "{were_condemned} syncs condemned a bundle");
}
