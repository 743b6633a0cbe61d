//! `barque hub schemas`.

use barque_bundle::path::printable;
use barque_bundle::wire::{MeasurementSchemas, SCHEMAS, SchemaLine, SchemaList, url_segment};

use super::{Context, client};
use crate::args::HubSchemasArgs;
use crate::{exit, output};

pub async fn run(context: &Context, args: HubSchemasArgs) -> anyhow::Result<u8> {
    let client = client(context, &args.target)?;
    let mut after = String::new();
    let mut whole = SchemaList { measurements: vec![], next_after: None, undescribed_files: 0 };
    loop {
        let (prefix, behind) = (url_segment(&args.prefix), url_segment(&after));
        let page: SchemaList =
            client.get(&format!("{SCHEMAS}?prefix={prefix}&after={behind}")).await?;
        whole.undescribed_files = page.undescribed_files;
        if context.global.json {
            whole.measurements.extend(page.measurements);
        } else {
            page.measurements.iter().for_each(print);
        }
        match page.next_after {
            Some(next) => after = next,
            None => break,
        }
    }
    if context.global.json {
        output::json(&whole)?;
    } else if whole.undescribed_files > 0 {
        output::say(&format!("{} files are not looked at yet", whole.undescribed_files));
    }
    Ok(exit::OK)
}

fn print(m: &MeasurementSchemas) {
    let name = match (&m.database, &m.measurement) {
        (Some(database), Some(measurement)) => format!("{database}/{measurement}"),
        _ => "(no measurement)".to_owned(),
    };
    let mut line = format!("{}  {} schemas", printable(&name), m.schemas.len());
    if !m.differing.is_empty() {
        line.push_str(&format!("  types differ: {}", printable(&m.differing.join(", "))));
    }
    if m.unread_files > 0 {
        line.push_str(&format!("  {} unread files", m.unread_files));
    }
    output::line(&line);
    m.schemas.iter().for_each(|s| schema(s, &m.differing));
}

fn schema(s: &SchemaLine, differing: &[String]) {
    let when = match (s.first_partition, s.last_partition) {
        (Some(first), Some(last)) => format!("{first} to {last}"),
        _ => "no partitions".to_owned(),
    };
    let id = s.schema_id.map_or("other schemas".to_owned(), |id| id.to_string()[..12].to_owned());
    output::line(&format!("  {}  {} files  {} rows  {when}", id, s.files, s.rows));
    for c in &s.columns {
        let mark = if differing.contains(&c.path) { '*' } else { ' ' };
        let kind = if c.logical.is_empty() { &c.physical } else { &c.logical };
        output::line(&format!("   {mark} {}  {kind}  {}", printable(&c.path), c.repetition));
    }
}
