//! KServe's Open Inference Protocol, version 2, behind `--kserve`: texts go in and out as tensors of bytes. As in
//! TGI, data may be a list of byte values; the protocol's own form, a list of one string, is answered in kind.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::http::body;
use crate::http::error::{ApiError, Family, Place};
use crate::http::fields::{Fields, checked_name};
use crate::http::request_context::RequestContext;
use crate::http::request_fields;
use crate::http::response::json;
use crate::http::shortened::shortened;
use crate::http::state::Server;
use crate::http::text_request::{TextRequest, generate_texts};
use crate::http::tgi::request::text_request;
use crate::http::warnings::{Warnings, names};
use crate::limits::Limits;

pub async fn server_metadata() -> Response<Body> {
    let extensions = ["health", "models", "metrics"];
    json(&About { name: "penstock", version: env!("CARGO_PKG_VERSION"), extensions: &extensions })
}

pub async fn live() -> Response<Body> {
    json(&Live { live: true })
}

/// TGI says `live` here too.
pub async fn ready(State(server): State<Arc<Server>>) -> Response<Body> {
    match server.health.borrow().refusal() {
        None => json(&Ready { live: true, ready: true }),
        Some(reason) => ApiError::unhealthy(reason).response(Family::Tgi),
    }
}

pub async fn model_metadata(
    State(server): State<Arc<Server>>,
    Path(path): Path<HashMap<String, String>>,
) -> Response<Body> {
    if let Err(error) = checked_path(&path).and_then(|()| server.loaded().map(|_| ())) {
        return error.response(Family::Tgi);
    }
    let version = path.get("version").map_or("1", String::as_str);
    json(&About { name: &path["name"], version, extensions: &["infer", "ready"] })
}

/// The names in the path come back in the answer.
fn checked_path(path: &HashMap<String, String>) -> Result<(), ApiError> {
    for field in ["name", "version"] {
        checked_name(&field.into(), path.get(field).map_or("", String::as_str))?;
    }
    Ok(())
}

/// All inputs run side by side; when one fails, the request fails.
pub async fn infer(
    State(server): State<Arc<Server>>,
    Path(path): Path<HashMap<String, String>>,
    request: Request,
) -> Response<Body> {
    RequestContext::answer(server, request, Family::Tgi, async |context, body| {
        checked_path(&path)?;
        let Asked { id, inputs, requests, warnings } =
            body::parse(context.server(), context.origin(), body, |fields, _| {
                Asked::parse(fields, fields.limits())
            })
            .await?;
        let (texts, warnings) = generate_texts(&context, requests, warnings, "inputs").await?;
        let outputs = inputs.into_iter().zip(texts).map(|(input, text)| input.answered(text)).collect();
        let model_version = path.get("version").map(String::as_str);
        Ok(json(&Inferred { id, model_name: &path["name"], model_version, outputs, warnings }))
    })
    .await
}

struct Asked {
    id: Option<String>,
    inputs: Vec<Input>,
    requests: Vec<TextRequest>,
    warnings: Warnings,
}

/// One tensor that came, as far as the answer depends on it.
struct Input {
    output: String,
    form: Form,
}

#[derive(Clone, Copy)]
enum Form {
    Bytes,
    Text,
}

impl Asked {
    fn parse(fields: &Fields, limits: &Limits) -> Result<Self, ApiError> {
        let mut warnings = Warnings::default();
        warnings.unknown(fields, "", names(request_fields::KSERVE));
        let id = fields.text(&request_fields::KSERVE_ID)?.map(|id| id.into_owned());
        let given =
            fields.required(&request_fields::KSERVE_INPUTS, fields.tree(&request_fields::KSERVE_INPUTS)?)?;
        let Value::Array(given) = given else { unreachable!("the table says that it is a list") };
        if given.is_empty() {
            return Err(ApiError::invalid("inputs", "must have at least one entry"));
        }
        let outputs = outputs(fields)?;
        if outputs.as_ref().is_some_and(|outputs| outputs.len() != given.len()) {
            let message = format!("must have one entry for each of `inputs`, {} in all", given.len());
            return Err(ApiError::invalid("outputs", message));
        }
        let parameters = fields.raw(&request_fields::PARAMETERS).map_or("{}", |raw| raw.get());
        let (mut inputs, mut requests) = (Vec::new(), Vec::new());
        for (index, input) in given.iter().enumerate() {
            let (name, text, form) = tensor(index, input)?;
            let text = Value::from(text);
            let body = format!("{{\"inputs\":{text},\"parameters\":{parameters}}}");
            let request = Fields::parse(body.as_bytes(), limits).and_then(|fields| text_request(&fields));
            requests.push(request.map_err(|error| error.within(Place::from("inputs").entry(index)))?);
            let output = outputs.as_ref().map_or(name, |outputs| outputs[index].clone());
            inputs.push(Input { output, form });
        }
        Ok(Self { id, inputs, requests, warnings: warnings.settle(limits)? })
    }
}

/// The names that the answer's tensors shall have.
fn outputs(fields: &Fields) -> Result<Option<Vec<String>>, ApiError> {
    let Some(Value::Array(given)) = fields.tree(&request_fields::KSERVE_OUTPUTS)? else { return Ok(None) };
    let names = given.iter().enumerate().map(|(index, output)| {
        let name = output["name"].as_str().map(str::to_string);
        let place = Place::from("outputs").entry(index).member("name");
        let name = name.ok_or_else(|| ApiError::invalid(&place, "must be a string"))?;
        checked_name(&place, &name).map(|()| name)
    });
    names.collect::<Result<_, _>>().map(Some)
}

/// An input's name and text.
fn tensor(index: usize, input: &Value) -> Result<(String, String, Form), ApiError> {
    let place = Place::from("inputs").entry(index);
    let wrong = |member: &'static str, text: &'static str| ApiError::invalid(place.member(member), text);
    let name = input["name"].as_str().ok_or_else(|| wrong("name", "must be a string"))?;
    checked_name(&place.member("name"), name)?;
    if !matches!(input["datatype"].as_str(), Some("BYTES" | "UINT8")) {
        return Err(wrong("datatype", "must be \"BYTES\"").given(shortened(&input["datatype"].to_string())));
    }
    let sizes = input["shape"].as_array();
    if !sizes.is_some_and(|sizes| sizes.iter().all(Value::is_u64)) {
        return Err(wrong("shape", "must be a list of whole numbers >= 0"));
    }
    let data = input["data"].as_array().ok_or_else(|| wrong("data", "must be a list"))?;
    if let Some(Value::String(text)) = data.first() {
        if data.len() > 1 {
            return Err(wrong("data", "must have one string").given(data.len().to_string()));
        }
        return Ok((name.into(), text.clone(), Form::Text));
    }
    let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let Some(bytes) = data.iter().map(byte).collect::<Option<Vec<u8>>>() else {
        return Err(wrong("data", "must be one string, or bytes >= 0 and <= 255"));
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok((name.into(), text, Form::Bytes)),
        Err(_) => Err(wrong("data", "is not valid UTF-8")),
    }
}

impl Input {
    fn answered(self, text: String) -> Output {
        let (shape, data) = match self.form {
            Form::Bytes => (vec![1, text.len()], Data::Bytes(text.into_bytes())),
            Form::Text => (vec![1], Data::Text([text])),
        };
        Output { name: self.output, shape, datatype: Datatype::Bytes, data }
    }
}

/// The server, or the model.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "KserveAbout")]
pub struct About<'a> {
    name: &'a str,
    version: &'a str,
    extensions: &'a [&'a str],
}

#[derive(JsonSchema, Serialize)]
pub struct Live {
    live: bool,
}

#[derive(JsonSchema, Serialize)]
pub struct Ready {
    live: bool,
    ready: bool,
}

#[derive(JsonSchema, Serialize)]
pub struct Inferred<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_version: Option<&'a str>,
    outputs: Vec<Output>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
struct Output {
    name: String,
    shape: Vec<usize>,
    datatype: Datatype,
    data: Data,
}

#[derive(JsonSchema, Serialize)]
#[schemars(inline)]
enum Datatype {
    #[serde(rename = "BYTES")]
    Bytes,
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
#[schemars(inline)]
enum Data {
    Bytes(Vec<u8>),
    Text([String; 1]),
}

#[cfg(test)]
mod tests {
    use serde_json::json as object;

    use super::*;
    use crate::http::fields::tests::limits;

    fn parsed(body: &Value) -> Result<Asked, String> {
        let limits = limits();
        let text = body.to_string();
        let fields = Fields::parse(text.as_bytes(), &limits).expect("JSON");
        Asked::parse(&fields, &limits).map_err(|error| error.to_string())
    }

    fn input(data: Value) -> Value {
        object!({ "name": "text", "shape": [1], "datatype": "BYTES", "data": data })
    }

    #[test]
    fn bytes_and_strings_become_prompts_and_are_answered_in_kind() {
        let body = object!({
            "id": "7", "inputs": [input(object!([104, 105])), input(object!(["hé"]))],
            "parameters": { "max_new_tokens": 5 }, "outputs": [{ "name": "a" }, { "name": "b" }],
        });
        let asked = parsed(&body).expect("valid");
        assert_eq!(asked.id.as_deref(), Some("7"));
        assert!(asked.requests.iter().all(|one| one.request.max_new_tokens == Some(5)));
        let answers: Vec<_> = asked.inputs.into_iter().map(|input| input.answered("né".into())).collect();
        assert_eq!(
            serde_json::to_value(answers).expect("JSON"),
            object!([
                { "name": "a", "shape": [1, 3], "datatype": "BYTES", "data": [110, 195, 169] },
                { "name": "b", "shape": [1], "datatype": "BYTES", "data": ["né"] },
            ])
        );
        let unnamed = parsed(&object!({ "inputs": [input(object!(["x"]))] })).expect("valid");
        assert_eq!(unnamed.inputs[0].output, "text");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = input(object!(["x"]));
        for (body, text) in [
            (object!({}), "`inputs` is required"),
            (object!({ "inputs": [] }), "`inputs` must have at least one entry"),
            (object!({ "inputs": [good, good, good, good, good] }), "`inputs` must have at most 4"),
            (object!({ "inputs": [good], "outputs": [] }), "`outputs` must have one entry for each"),
            (object!({ "inputs": [good], "outputs": [{}] }), "`outputs[0].name` must be a string"),
            (object!({ "inputs": [7] }), "`inputs[0].name` must be a string"),
            (object!({ "inputs": [input(object!([256]))] }), "`inputs[0].data` must be one string, or bytes"),
            (object!({ "inputs": [input(object!([255]))] }), "`inputs[0].data` is not valid UTF-8"),
            (object!({ "inputs": [input(object!(["a", "b"]))] }), "`inputs[0].data` must have one string"),
            (
                object!({ "inputs": [good], "parameters": { "top_p": 2 } }),
                "inputs[0]: `top_p` must be a number",
            ),
            (object!({ "inputs": [input(object!([]))] }), "inputs[0]: `inputs` cannot be empty"),
            (
                object!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1], "data": [1] }] }),
                "`inputs[0].datatype` must be \"BYTES\". Given: \"FP32\"",
            ),
            (
                object!({ "inputs": [{ "name": "x", "datatype": "BYTES", "data": [1] }] }),
                "`inputs[0].shape` must be a list",
            ),
        ] {
            let error = parsed(&body).err().unwrap_or_else(|| panic!("{body} was taken"));
            assert!(error.starts_with(text), "{body}: {error}");
        }
    }
}
