//! The function behind each route of the table.

use std::sync::Arc;

use axum::Router;
use axum::routing::{MethodRouter, get, post};

use crate::config::RouterArgs;
use crate::http::openai::{chat, completions, responses};
use crate::http::routes::{Handler, ROUTES, Verb};
use crate::http::state::Server;
use crate::http::{
    anthropic, block_events, docs, kserve, openapi, ops, page, sagemaker, tgi, tokenize, vertex,
};

/// The routes that are served with these flags.
pub fn router(args: &RouterArgs) -> Router<Arc<Server>> {
    // GET before POST: the header `Allow` of a 405 names the methods in this order.
    let of = |method| ROUTES.iter().filter(move |route| route.method == method && route.is_served(args));
    of(Verb::Get)
        .chain(of(Verb::Post))
        .fold(Router::new(), |router, route| router.route(route.path, handler(route.handler)))
}

fn handler(handler: Handler) -> MethodRouter<Arc<Server>> {
    match handler {
        Handler::Generate => post(tgi::generate),
        Handler::GenerateStream => post(tgi::generate_stream),
        Handler::Compat => post(tgi::compat),
        Handler::ChatCompletions => post(chat::chat_completions),
        Handler::Completions => post(completions::completions),
        Handler::Responses => post(responses::responses),
        Handler::Messages => post(anthropic::messages),
        Handler::CountTokens => post(anthropic::count_tokens),
        Handler::Models => get(ops::models),
        Handler::Model => get(ops::model),
        Handler::Tokenize => post(tokenize::tokenize),
        Handler::ChatTokenize => post(tokenize::chat_tokenize),
        Handler::Invocations => post(sagemaker::invocations),
        Handler::Vertex => post(vertex::predict),
        Handler::KserveServer => get(kserve::server_metadata),
        Handler::KserveLive => get(kserve::live),
        Handler::KserveReady => get(kserve::ready),
        Handler::KserveModel => get(kserve::model_metadata),
        Handler::KserveInfer => post(kserve::infer),
        Handler::Info => get(ops::info),
        Handler::Health => get(ops::health),
        Handler::Alive => get(ops::alive),
        Handler::Index => get(page::index),
        Handler::Metrics => get(ops::metrics),
        Handler::BlockEvents => get(block_events::block_events),
        Handler::Docs => get(docs::page),
        Handler::OpenApi => get(openapi::document),
        Handler::PageFile => get(page::file),
    }
}
