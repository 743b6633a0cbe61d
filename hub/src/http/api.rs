//! Routes and their description in one place: what is served is what `/openapi.json` says.
//!
//! Source of the form: OpenAPI 3.1; schemas are made from the very types that are read and written.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use barque_bundle::wire::{Problem, Role};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::hub::Parts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Patch,
    Delete,
}

impl Method {
    fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Head => MethodFilter::HEAD,
            Self::Post => MethodFilter::POST,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::Post => "post",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Anyone,
    /// A spoke, by a token that it signs for this one request.
    Spoke,
    /// A bearer token of at least this role.
    Role(Role),
}

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A body: its media type, and its schema where it is JSON.
#[derive(Clone, Copy)]
struct Content {
    media: &'static str,
    schema: Option<SchemaOf>,
}

/// One call of the interface.
#[derive(Clone, Copy)]
pub struct Operation {
    method: Method,
    path: &'static str,
    id: &'static str,
    says: &'static str,
    who: Who,
    query: Option<SchemaOf>,
    request: Option<Content>,
    answer: Option<Content>,
}

impl Operation {
    fn new(
        (method, path): (Method, &'static str),
        id: &'static str,
        who: Who,
        says: &'static str,
    ) -> Self {
        Self { method, path, id, says, who, query: None, request: None, answer: None }
    }

    pub fn get(path: &'static str, id: &'static str, who: Who, says: &'static str) -> Self {
        Self::new((Method::Get, path), id, who, says)
    }

    pub fn post(path: &'static str, id: &'static str, who: Who, says: &'static str) -> Self {
        Self::new((Method::Post, path), id, who, says)
    }

    pub fn head(path: &'static str, id: &'static str, who: Who, says: &'static str) -> Self {
        Self::new((Method::Head, path), id, who, says)
    }

    pub fn patch(path: &'static str, id: &'static str, who: Who, says: &'static str) -> Self {
        Self::new((Method::Patch, path), id, who, says)
    }

    pub fn delete(path: &'static str, id: &'static str, who: Who, says: &'static str) -> Self {
        Self::new((Method::Delete, path), id, who, says)
    }

    pub fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(schema_of::<T>), ..self }
    }

    pub fn takes<T: JsonSchema>(self) -> Self {
        let content = Content { media: "application/json", schema: Some(schema_of::<T>) };
        Self { request: Some(content), ..self }
    }

    pub fn takes_bytes(self, media: &'static str) -> Self {
        Self { request: Some(Content { media, schema: None }), ..self }
    }

    pub fn gives<T: JsonSchema>(self) -> Self {
        self.gives_as::<T>("application/json")
    }

    pub fn gives_as<T: JsonSchema>(self, media: &'static str) -> Self {
        Self { answer: Some(Content { media, schema: Some(schema_of::<T>) }), ..self }
    }

    pub fn gives_bytes(self, media: &'static str) -> Self {
        Self { answer: Some(Content { media, schema: None }), ..self }
    }

    /// The path as OpenAPI writes it: a wildcard is a parameter like others.
    fn template(&self) -> String {
        self.path.replace("{*", "{")
    }

    fn describe(&self, generator: &mut SchemaGenerator) -> Value {
        let content = |generator: &mut SchemaGenerator, c: Content| {
            let schema = match c.schema {
                Some(of) => of(generator).to_value(),
                None => json!({ "type": "string", "format": "binary" }),
            };
            json!({ c.media: { "schema": schema } })
        };
        let mut out = json!({
            "operationId": self.id,
            "summary": self.says,
            "parameters": self.parameters(generator),
        });
        match self.who {
            Who::Anyone => out["security"] = json!([]),
            Who::Spoke => out["security"] = json!([{ "spoke": [] }]),
            Who::Role(role) => {
                out["security"] = json!([{ "bearer": [] }]);
                out["description"] = format!("Needs the role {}.", role.as_str()).into();
            }
        }
        if let Some(c) = self.request {
            out["requestBody"] = json!({ "required": true, "content": content(generator, c) });
        }
        let answer = match self.answer {
            Some(c) => json!({ "description": "done", "content": content(generator, c) }),
            None => json!({ "description": "done" }),
        };
        let problem =
            Content { media: "application/problem+json", schema: Some(schema_of::<Problem>) };
        let problem = content(generator, problem);
        out["responses"] = json!({
            "200": answer,
            "default": { "description": "a problem (RFC 9457)", "content": problem },
        });
        out
    }

    fn parameters(&self, generator: &mut SchemaGenerator) -> Vec<Value> {
        let text = json!({ "type": "string" });
        let in_path = self.path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let mut parameters: Vec<Value> = in_path
            .map(|name| json!({ "name": name.trim_start_matches('*'), "in": "path", "required": true, "schema": text }))
            .collect();
        let Some(of) = self.query else { return parameters };
        let schema = resolved(of(generator).to_value(), generator);
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            parameters.push(json!({ "name": name, "in": "query", "schema": schema }));
        }
        parameters
    }
}

/// The schema that a reference names, or the schema itself.
fn resolved(schema: Value, generator: &SchemaGenerator) -> Value {
    let name = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next());
    name.and_then(|n| generator.definitions().get(n).cloned()).unwrap_or(schema)
}

/// Routes that are served, each with its description.
#[derive(Default)]
pub struct Api {
    router: Router<Arc<Parts>>,
    operations: Vec<Operation>,
}

impl Api {
    /// Serves an operation by a handler.
    pub fn on<H, T>(mut self, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, Arc<Parts>>,
        T: 'static,
    {
        self.router = self.router.route(operation.path, on(operation.method.filter(), handler));
        self.operations.push(operation);
        self
    }

    /// The routes, with `/openapi.json` that describes them and itself.
    pub fn into_router(mut self) -> Router<Arc<Parts>> {
        self.operations.push(
            Operation::get("/openapi.json", "openapi", Who::Anyone, "This description.")
                .gives_bytes("application/json"),
        );
        let document = self.document().to_string();
        self.router.route(
            "/openapi.json",
            on(MethodFilter::GET, move || async move {
                ([(axum::http::header::CONTENT_TYPE, "application/json")], document)
            }),
        )
    }

    fn document(&self) -> Value {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        let mut generator = SchemaGenerator::new(settings);
        let mut paths = Map::new();
        for operation in &self.operations {
            let described = operation.describe(&mut generator);
            let path = paths.entry(operation.template()).or_insert_with(|| json!({}));
            path[operation.method.word()] = described;
        }
        let schemas = generator.take_definitions(true);
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Barque hub",
                "version": crate::VERSION,
                "description": "How spokes, operators and readers talk to a hub; docs/HTTP.md says the rest.",
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "bearer": {
                        "type": "http", "scheme": "bearer",
                        "description": "A token of `barque hub token add`; roles reader, operator, admin.",
                    },
                    "spoke": {
                        "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                        "description": "An EdDSA JWT that a spoke signs for one request.",
                    },
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    if key == "$ref" {
                        out.extend(inner.as_str().map(str::to_owned));
                    }
                    references(inner, out);
                }
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, out)),
            _ => {}
        }
    }

    #[test]
    fn the_description_is_whole_every_reference_resolves_and_every_id_is_one() {
        let document = super::super::routes::api(super::super::routes::Spokes::Call).document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        let mut ids = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                ids.push(operation["operationId"].as_str().unwrap().to_owned());
                assert!(!operation["summary"].as_str().unwrap().is_empty(), "{method} {path}");
            }
        }
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
