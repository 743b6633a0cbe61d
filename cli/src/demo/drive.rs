//! The part of the demo without a network: a drive goes to the hub and comes back.

use std::path::Path;

use anyhow::{Context as _, ensure};
use barque_bundle::ByteSize;
use serde_json::Value;

use super::process::run_json;
use super::{Demo, number, text};

/// The spoke that nothing connects to the hub but a drive.
pub const ISLAND: &str = "island-01";

impl Demo {
    /// Exported, verified, imported, imported again, acknowledged.
    pub fn carry_a_drive(&mut self) -> anyhow::Result<()> {
        self.enroll(ISLAND)?;
        let (state, data) = (self.stage.state(ISLAND), self.data());
        let drive = self.stage.root.join("drive");
        std::fs::create_dir(&drive)?;
        let to = path(&drive)?;
        let export = ["bundle", "export", &to, "--label", "drive 7", "--state", &state, "--json"];
        let exported = run_json(&export)?;
        let bundle = text(&exported, "path");
        let files = number(&exported, "files");
        let size = ByteSize(number(&exported, "bytes"));
        let how = text(&exported, "read_back").replace('_', " ");
        self.stage.step(
            format!("{ISLAND} exports to a drive"),
            None,
            format!("{files} files, {size}, {how}"),
        );
        let verified = run_json(&["bundle", "verify", &bundle, "--state", &state, "--json"])?;
        ensure!(text(&verified, "signature") == "good", "the drive does not verify: {verified}");
        self.stage.step("the drive is verified", None, "content whole, signature good");
        let import = ["hub", "import", &bundle, "--data", &data, "--json"];
        let imported = run_json(&import)?;
        ensure!(number(&imported, "committed") == files, "not all is new: {imported}");
        self.stage.step(
            "the hub imports the drive",
            None,
            format!("{files} new, receipt on the drive"),
        );
        let again = run_json(&import)?;
        ensure!(text(&again, "reason") == "already imported", "imported twice: {again}");
        let when = text(&again, "imported_at");
        self.stage.step("and is asked to again", None, format!("already imported, {when}"));
        self.stage.acknowledge(ISLAND, &bundle, files)?;
        let history = run_json(&["hub", "history", ISLAND, "--data", &data, "--json"])?;
        let label = history.pointer("/bundles/0/label").and_then(Value::as_str);
        ensure!(label == Some("drive 7"), "the history does not say so: {history}");
        Ok(())
    }
}

fn path(path: &Path) -> anyhow::Result<String> {
    Ok(path.to_str().context("the temporary folder's name is not UTF-8")?.to_owned())
}
