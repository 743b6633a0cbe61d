//! `barque hub schemas`.

use barque_bundle::path::printable;
use barque_bundle::wire::{MeasurementSchemas, SCHEMAS, SchemaLine, SchemaList, url_segment};

use super::{Context, client};
use crate::args::HubSchemasArgs;
use crate::{exit, output};

pub async fn run(context: &Context, args: HubSchemasArgs) -> anyhow::Result<u8> {
    let path = format!("{SCHEMAS}?prefix={}", url_segment(&args.prefix));
    let list: SchemaList = client(context, &args.target)?.get(&path).await?;
    if context.global.json {
        output::json(&list)?;
        return Ok(exit::OK);
    }
    list.measurements.iter().for_each(print);
    if list.undescribed_files > 0 {
        output::say(&format!("{} files are not looked at yet", list.undescribed_files));
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
    let id = s.schema_id.to_string();
    output::line(&format!("  {}  {} files  {} rows  {when}", &id[..12], s.files, s.rows));
    for c in &s.columns {
        let mark = if differing.contains(&c.path) { '*' } else { ' ' };
        let kind = if c.logical.is_empty() { &c.physical } else { &c.logical };
        output::line(&format!("   {mark} {}  {kind}  {}", printable(&c.path), c.repetition));
    }
}
