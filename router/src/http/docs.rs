//! The API for readers: `docs/http.md` (a test says when it is stale), which is the page at `/docs` too. Made from the
//! tables of routes and of request fields, with the flags that set a limit in place of their values.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;

use crate::http::page;
use crate::http::request_fields::{self, Field, Kind, Low, Most};
use crate::http::routes::RequestSchema;
use crate::http::routes::{ROUTES, Verb};
use crate::limits::PRIORITIES;

/// What the dialects of other servers have and this one has not, written by hand.
const DIALECTS: &str = include_str!("dialects.md");

/// Made once, and shared by all answers: those that nobody takes hold no copy.
static PAGE: LazyLock<Bytes> = LazyLock::new(|| html(&markdown()).into());

pub async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(PAGE.clone()));
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().extend(page::protection());
    response
}

/// `docs/http.md`.
fn markdown() -> String {
    let mut text = String::from(
        "# The HTTP API\n\n\
         Made from the tables in `router/src/http/routes.rs` and `request_fields.rs`; a running server has the same at\n\
         `/docs`, and as OpenAPI at `/api-doc/openapi.json`.\n\n\
         A field that is absent or `null` has its default. A wrong value is a 422 whose message names the field and\n\
         its limit. A field that has no effect, an unknown one or one that does nothing beside the others, is named\n\
         in `warnings` of the answer (of a stream, in the first event; of `/tokenize`, in headers `x-warning`); with\n\
         `--strict-requests` it is a 422. Errors are `{\"error\", \"error_type\"}`, on `/v1/*` OpenAI's\n\
         `{\"error\": {\"message\", \"type\", \"param\", \"code\", \"http_status_code\"}}`, on `/v1/messages` Anthropic's, where a 422 is a 400.\n\
         `error_type` is a text: `validation` (400, 413, 415,\n\
         422), `template_error` (422), `authentication` (401), `not_found` (404), `method_not_allowed` (405), `timeout` (408),\n\
         `wrong_host` (421), `generation` (424), `overloaded` (429), `deadline_exceeded` (504), `internal` and `incomplete_generation_stream`\n\
         (500); of a 503 it is `healthcheck` on /health, and null elsewhere, so that `huggingface_hub` raises an error with\n\
         the status by which its users retry. `docs/errors.md` has every cause, and what its receiver does.\n\n\
         A stream begins with its first token, and what fails before it has its status (422, 429, 503, ...). But no client waits\n\
         longer than 15 s for the head of a stream: where queue and prompt take more, it is 200 by then, and what fails from then on is the\n\
         stream's last event, an error in the shape of its route. Every 15 s of silence bring an event that says nothing: a chunk with an\n\
         empty `delta.content` in chats and with an empty `text` on `/v1/completions`, `response.in_progress` on `/v1/responses`, `ping` on\n\
         `/v1/messages`, and on TGI's routes a comment (`:`).\n\n\
         | route | |\n|---|---|\n",
    );
    for route in &ROUTES {
        let Some(docs) = &route.docs else { continue };
        let method = match route.method {
            Verb::Get => "GET",
            Verb::Post => "POST",
        };
        let _ = writeln!(text, "| `{method} {}` | {} |", route.documented_path(), docs.about);
    }
    let mut table = |title: &str, fields: &[&Field]| {
        let _ = write!(text, "\n## {title}\n\n| field | value | default | |\n|---|---|---|---|\n");
        for field in fields {
            let Field { name, default, about, .. } = field;
            let _ = writeln!(text, "| `{name}` | {} | {default} | {about} |", bounds(field));
        }
    };
    table("Headers of all that generate", &[&request_fields::DEADLINE]);
    table("`/generate`, `/generate_stream`, `/`, `/tokenize`", &RequestSchema::Compat.fields());
    table("`parameters` of these", request_fields::TGI_PARAMETERS);
    table("`/v1/chat/completions`, `/chat_tokenize`", &RequestSchema::Chat.fields());
    table("`/v1/completions`", &RequestSchema::Completion.fields());
    table("`/vertex`", &RequestSchema::Vertex.fields());
    table("`/v2/models/{name}/infer`", &RequestSchema::Infer.fields());
    text.push_str(DIALECTS);
    text
}

fn bounds(field: &Field) -> String {
    let most = |most: Most| match most {
        Most::Is(value) if value >= u64::from(u32::MAX) => None,
        Most::Is(value) if value == i32::MAX as u64 => None,
        Most::Is(value) => Some(value.to_string()),
        Most::BestOf => Some("`--max-best-of`".into()),
        Most::StopSequences => Some("`--max-stop-sequences`".into()),
        Most::TopTokens => Some("`--max-top-n-tokens`".into()),
        Most::InputTokens => Some("`--max-input-tokens`".into()),
        Most::Prompts => Some("`--max-client-batch-size`".into()),
        Most::Sequences => Some("`--max-concurrent-requests`".into()),
    };
    match field.kind {
        Kind::Boolean => "true or false".into(),
        Kind::Integer { least, most: bound } => match most(bound) {
            Some(most) if most == least.to_string() => most,
            Some(most) => format!("{least} to {most}"),
            None => format!("{least} or more"),
        },
        Kind::Priority => format!("`--highest-priority` to {}", PRIORITIES.end()),
        Kind::Number { low, high } => {
            let low = match low {
                Low::AtLeast(low) => format!("{low} or more"),
                Low::Above(low) => format!("above {low}"),
            };
            if high.is_finite() { format!("{low}, at most {high}") } else { low }
        }
        Kind::Prompt => "string".into(),
        Kind::Text { longest } => format!("string of at most {longest} characters"),
        Kind::Texts { most: bound, longest } => {
            let most = most(bound).unwrap_or_default();
            format!("string, or a list of at most {most}, each of at most {longest} characters")
        }
        Kind::Object => "object".into(),
        Kind::List { most: bound } => format!("list of at most {}", most(bound).unwrap_or_default()),
        Kind::Any => "see right".into(),
    }
}

/// The little of Markdown that `markdown` writes.
fn html(markdown: &str) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Penstock: the HTTP API</title>\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <link rel=\"stylesheet\" href=\"page/docs.css\">",
    );
    let mut in_table = false;
    for line in markdown.lines() {
        let row = line.strip_prefix("| ").and_then(|row| row.strip_suffix('|'));
        if in_table && row.is_none() && !line.starts_with("|-") {
            page.push_str("</table>");
            in_table = false;
        }
        if let Some(row) = row {
            if !in_table {
                page.push_str("<table>");
                in_table = true;
            }
            page.push_str("<tr>");
            for cell in row.split(" | ") {
                let _ = write!(page, "<td>{}</td>", inline(cell.trim()));
            }
            page.push_str("</tr>");
        } else if let Some(title) = line.strip_prefix("## ") {
            let _ = write!(page, "<h2>{}</h2>", inline(title));
        } else if let Some(title) = line.strip_prefix("# ") {
            let _ = write!(page, "<h1>{}</h1>", inline(title));
        } else if !line.starts_with("|-") {
            let _ = writeln!(page, "{}", if line.is_empty() { "<p>".into() } else { inline(line) });
        }
    }
    if in_table {
        page.push_str("</table>");
    }
    page
}

/// Escaped, and what stands in backticks as code.
fn inline(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut parts = escaped.split('`');
    let mut line = parts.next().unwrap_or_default().to_string();
    for (index, part) in parts.enumerate() {
        line.push_str(if index % 2 == 0 { "<code>" } else { "</code>" });
        line.push_str(part);
    }
    line
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_what_the_tables_say() {
        assert_is_written("http.md", &markdown());
    }

    /// A pipe in a cell divides it, within code as well, and what comes behind the last column of the head is not shown.
    #[test]
    fn every_row_has_the_cells_of_its_tables_head() {
        let text = markdown();
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let mut head = None;
        for line in text.lines() {
            head = line.starts_with('|').then(|| head.unwrap_or_else(|| cells(line)));
            assert!(head.is_none_or(|head| cells(line) == head), "{line}");
        }
        assert!(text.contains("| `grammar` | see right | none | `{\"type\": ..., \"value\": ...}`"));
    }

    /// Writes it instead, where asked to.
    pub fn assert_is_written(name: &str, text: &str) {
        let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("PENSTOCK_WRITE_DOCS").is_some() {
            std::fs::write(&path, text).expect("docs/ can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let how = "PENSTOCK_WRITE_DOCS=1 cargo test -p penstock-router";
        assert!(found == text, "docs/{name} is stale: {how}");
    }
}
