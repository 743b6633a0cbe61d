//! `barque bundle verify`.

use std::path::Path;

use anyhow::Context as _;
use barque_bundle::open::{Bundle, Head};
use barque_bundle::{ErrorKind, HubId, PublicKey};
use barque_spoke::StateFolder;
use barque_spoke::identity::Identity;

use super::{amount, named};
use crate::args::bundle::BundleVerifyArgs;
use crate::command::Context;
use crate::{exit, output};

/// By what a signature is judged.
struct Judge {
    key: PublicKey,
    /// The hub it has to be for; the bundle's own where nobody says.
    hub_id: Option<HubId>,
}

pub fn run(context: &Context, args: &BundleVerifyArgs) -> anyhow::Result<u8> {
    let mut bundle = Bundle::open(&args.path)?;
    let head = bundle.head.clone();
    let judge = judge(context, args, &head)?;
    if let Some(judge) = &judge {
        let hub_id = judge.hub_id.unwrap_or(head.header.hub_id);
        head.header
            .verify(&head.bytes, &head.sig, &judge.key, hub_id)
            .map_err(barque_bundle::open::OpenError::from)?;
    }
    bundle.check_entries()?;
    let form = bundle.form().as_str();
    let bar = output::bar(context.global.quiet || context.global.json);
    output::measure(&bar, head.header.total_bytes);
    let checked = bundle.check_members(&|n| bar.inc(n));
    bar.finish_and_clear();
    checked?;
    tell(context, args, &head, form, judge.is_some())
}

fn tell(
    context: &Context,
    args: &BundleVerifyArgs,
    head: &Head,
    form: &str,
    is_signed: bool,
) -> anyhow::Result<u8> {
    let header = &head.header;
    if context.global.json {
        output::json(&serde_json::json!({
            "path": args.path,
            "form": form,
            "bundle_id": header.bundle_id,
            "spoke_id": header.spoke_id,
            "hub_id": header.hub_id,
            "label": header.label,
            "created_at": header.created_at,
            "files": header.entry_count,
            "bytes": header.total_bytes,
            "key_id": header.key_id,
            "content": "whole",
            "signature": if is_signed { "good" } else { "not_checked" },
        }))?;
    } else if !context.global.quiet {
        let what = format!(
            "{} of {} ({})",
            named(header.bundle_id, header.label.as_deref()),
            header.spoke_id,
            amount(header.entry_count, header.total_bytes)
        );
        output::line(&match is_signed {
            true => format!("{what}: whole, signature good"),
            false => format!(
                "{what}: content whole, signature NOT checked; give the spoke's public key with \
                 --key FILE, --state DIR or --data DIR"
            ),
        });
    }
    Ok(match is_signed || args.allow_unsigned {
        true => exit::OK,
        false => ErrorKind::Unauthenticated.exit_code(),
    })
}

/// The key to judge by, from wherever the caller says; none when nowhere.
fn judge(context: &Context, args: &BundleVerifyArgs, head: &Head) -> anyhow::Result<Option<Judge>> {
    if let Some(file) = &args.key {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let key = text.trim().parse().with_context(|| {
            format!("{} holds no public key: 32 bytes in base64", file.display())
        })?;
        return Ok(Some(Judge { key, hub_id: None }));
    }
    if let Some(state) = &args.state {
        return of_state(state, head).map(Some);
    }
    let Some(data) = args.data.data.clone() else { return Ok(None) };
    let (key, hub_id) =
        barque_hub::registry::key_of_bundle(&context.file.data(Some(data)), &head.header)?;
    Ok(Some(Judge { key, hub_id: Some(hub_id) }))
}

/// The spoke's own key; a bundle for a hub that it does not know is not one of its own.
fn of_state(state: &Path, head: &Head) -> anyhow::Result<Judge> {
    let identity = Identity::load(&StateFolder::new(state))?.ok_or_else(|| {
        barque_spoke::Error::NotEnrolled(format!("{} holds no spoke", state.display()))
    })?;
    let known = identity.hubs.iter().find(|p| p.hub_id == head.header.hub_id);
    let hub_id = known.or(identity.hubs.first()).map(|p| p.hub_id);
    Ok(Judge { key: identity.key.public(), hub_id })
}
