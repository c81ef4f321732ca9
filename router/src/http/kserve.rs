//! KServe's Open Inference Protocol, version 2, behind `--kserve`: texts go in and out as tensors of bytes. As in
//! TGI, data may be a list of byte values; the protocol's own form, a list of one string, is answered in kind.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::Response;
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::{Value, json as object};

use crate::http::Server;
use crate::http::error::{ApiError, Family};
use crate::http::fields::{Fields, shortened};
use crate::http::platforms::texts;
use crate::http::tgi::{TextRequest, json};
use crate::http::visit::Visit;
use crate::http::warnings::{Warnings, names};
use crate::limits::{self, Limits, Most};

/// With and without a version, which the protocol leaves to the client. Any name is taken, as everywhere.
pub fn routes(router: Router<Arc<Server>>) -> Router<Arc<Server>> {
    let mut router = router
        .route("/v2", get(server_metadata))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready));
    for model in ["/v2/models/{name}", "/v2/models/{name}/versions/{version}"] {
        router = router
            .route(model, get(model_metadata))
            .route(&format!("{model}/ready"), get(ready))
            .route(&format!("{model}/infer"), post(infer));
    }
    router
}

async fn server_metadata() -> Response<Body> {
    let extensions = ["health", "models", "metrics"];
    json(&object!({ "name": "penstock", "version": env!("CARGO_PKG_VERSION"), "extensions": extensions }))
}

async fn live() -> Response<Body> {
    json(&object!({ "live": true }))
}

/// TGI says `live` here too.
async fn ready(State(server): State<Arc<Server>>) -> Response<Body> {
    match server.health.borrow().refusal() {
        None => json(&object!({ "live": true, "ready": true })),
        Some(reason) => ApiError::unhealthy(reason).response(Family::Tgi),
    }
}

async fn model_metadata(Path(path): Path<HashMap<String, String>>) -> Response<Body> {
    let version = path.get("version").map_or("1", String::as_str);
    json(&object!({ "name": path["name"], "version": version, "extensions": ["infer", "ready"] }))
}

/// All inputs run side by side; when one fails, the request fails.
async fn infer(
    State(server): State<Arc<Server>>,
    Path(path): Path<HashMap<String, String>>,
    request: Request,
) -> Response<Body> {
    Visit::answer(server, request, Family::Tgi, async |visit, body| {
        let visit = visit.as_mut().expect("nothing here streams");
        let Asked { id, inputs, requests, warnings } = {
            let limits = &visit.loaded()?.limits;
            Asked::parse(&Fields::parse(&body, limits)?, limits)?
        };
        let (texts, warnings) = texts(visit, requests, warnings, "inputs").await?;
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
        warnings.unknown(fields, "", names(limits::KSERVE));
        let id = fields.text(&limits::KSERVE_ID)?.map(|id| id.into_owned());
        let given = fields.required(&limits::KSERVE_INPUTS, fields.tree(&limits::KSERVE_INPUTS)?)?;
        let Value::Array(given) = given else { unreachable!("the table says that it is a list") };
        if given.is_empty() {
            return Err(ApiError::invalid("inputs", "`inputs` must have at least one entry"));
        }
        if given.len() as u64 > limits.most(Most::Prompts) {
            return Err(fields.too_many("inputs", Most::Prompts, given.len()));
        }
        let outputs = outputs(fields)?;
        if outputs.as_ref().is_some_and(|outputs| outputs.len() != given.len()) {
            let message =
                format!("`outputs` must have one entry for each of `inputs`, {} in all", given.len());
            return Err(ApiError::invalid("outputs", message));
        }
        let parameters = fields.raw(&limits::PARAMETERS).map_or("{}", |raw| raw.get());
        let (mut inputs, mut requests) = (Vec::new(), Vec::new());
        for (place, input) in given.iter().enumerate() {
            let (name, text, form) = tensor(place, input)?;
            let text = Value::from(text);
            let body = format!("{{\"inputs\":{text},\"parameters\":{parameters}}}");
            let request =
                Fields::parse(body.as_bytes(), limits).and_then(|fields| TextRequest::parse(&fields));
            requests.push(request.map_err(|error| error.within(&format!("inputs[{place}]")))?);
            let output = outputs.as_ref().map_or(name, |outputs| outputs[place].clone());
            inputs.push(Input { output, form });
        }
        Ok(Self { id, inputs, requests, warnings: warnings.settle(limits)? })
    }
}

/// The names that the answer's tensors shall have.
fn outputs(fields: &Fields) -> Result<Option<Vec<String>>, ApiError> {
    let Some(Value::Array(given)) = fields.tree(&limits::KSERVE_OUTPUTS)? else { return Ok(None) };
    let names = given.iter().enumerate().map(|(place, output)| {
        let name = output["name"].as_str().map(str::to_string);
        name.ok_or_else(|| ApiError::invalid("outputs", format!("`outputs[{place}].name` must be a string")))
    });
    names.collect::<Result<_, _>>().map(Some)
}

/// An input's name and text.
fn tensor(place: usize, input: &Value) -> Result<(String, String, Form), ApiError> {
    let wrong = |text: String| Err(ApiError::invalid("inputs", text));
    let Some(name) = input["name"].as_str() else {
        return wrong(format!("`inputs[{place}].name` must be a string"));
    };
    if !matches!(input["datatype"].as_str(), Some("BYTES" | "UINT8")) {
        let given = input["datatype"].to_string();
        return wrong(format!("`inputs[{place}].datatype` must be \"BYTES\". Given: {}", shortened(&given)));
    }
    let sizes = input["shape"].as_array();
    if !sizes.is_some_and(|sizes| sizes.iter().all(Value::is_u64)) {
        return wrong(format!("`inputs[{place}].shape` must be a list of whole numbers >= 0"));
    }
    let Some(data) = input["data"].as_array() else {
        return wrong(format!("`inputs[{place}].data` must be a list"));
    };
    if let Some(Value::String(text)) = data.first() {
        if data.len() > 1 {
            return wrong(format!("`inputs[{place}].data` must have one string. Given: {}", data.len()));
        }
        return Ok((name.into(), text.clone(), Form::Text));
    }
    let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let Some(bytes) = data.iter().map(byte).collect::<Option<Vec<u8>>>() else {
        return wrong(format!("`inputs[{place}].data` must be one string, or bytes >= 0 and <= 255"));
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok((name.into(), text, Form::Bytes)),
        Err(_) => wrong(format!("`inputs[{place}].data` is not valid UTF-8")),
    }
}

impl Input {
    fn answered(self, text: String) -> Output {
        let (shape, data) = match self.form {
            Form::Bytes => (vec![1, text.len()], Data::Bytes(text.into_bytes())),
            Form::Text => (vec![1], Data::Text([text])),
        };
        Output { name: self.output, shape, datatype: "BYTES", data }
    }
}

#[derive(Serialize)]
struct Inferred<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    model_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_version: Option<&'a str>,
    outputs: Vec<Output>,
    #[serde(skip_serializing_if = "Warnings::is_empty")]
    warnings: Warnings,
}

#[derive(Serialize)]
struct Output {
    name: String,
    shape: Vec<usize>,
    datatype: &'static str,
    data: Data,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data {
    Bytes(Vec<u8>),
    Text([String; 1]),
}

#[cfg(test)]
mod tests {
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
