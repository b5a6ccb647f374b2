//! `DecideStream`: requests of one call, answered one after the other.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper::body::Incoming;
use tokio::{select, time::Instant};
use tonic::{Code, Status};

use crate::{
    edge::panics::caught,
    net::grpc::ServedMethod,
    process::calls::after_client_left,
    rls::{
        framing::{self, AnswerBody, Answers, Messages, StreamedAnswer},
        refusal::Refusal,
        service::{ConnectedClient, Service},
        unheard::Unheard,
    },
    store::guard::Arrival,
    telemetry::CallSpan,
};

const METHOD: ServedMethod = ServedMethod::DecideStream;

/// How long the messages of a client are decided that has left: a hostile one could send more than its share.
const GOES_ON: Duration = Duration::from_secs(1);

impl Service {
    /// Answers a call of `DecideStream`.
    pub(in crate::rls) fn answer_stream(
        self: Arc<Self>,
        body: Incoming,
        client: Arc<ConnectedClient>,
    ) -> Response<AnswerBody> {
        let calls = client.calls.clone();
        framing::answer_stream(&calls, async move |answers| {
            self.answer_all(body, &client, &answers).await
        })
    }

    async fn answer_all(
        self: &Arc<Self>,
        body: Incoming,
        client: &ConnectedClient,
        answers: &Answers,
    ) -> Result<(), Status> {
        let mut messages = Messages::new(body, self.message_bytes_max, &client.memory)?;
        loop {
            // Its end comes first: a client that never pauses would keep the connection.
            let message = select! {
                biased;
                () = client.ending.cancelled() => return Err(framing::connection_ends()),
                message = messages.next() => message.map_err(|refusal| refusal.status())?,
            };
            let Some((message, held)) = message else { return Ok(()) };
            let answered = async {
                let answer = self.answer_one(message, client).await.map_err(|one| one.status())?;
                drop(held);
                Ok::<_, Status>(answers.send(Ok(answer)).await.is_ok())
            };
            if !messages.read_during(answered).await? {
                after_client_left(self.decide_rest(&mut messages, client)).await;
                return Ok(());
            }
        }
    }

    /// Decides what has arrived whole from a client that has left: it may be debits for work that is done.
    async fn decide_rest(self: &Arc<Self>, messages: &mut Messages, client: &ConnectedClient) {
        let until = Instant::now() + GOES_ON;
        while let Ok(Some((message, _held))) = messages.next().await
            && Instant::now() < until
        {
            // In turns, however small it is: nothing else holds back a client that has left.
            let turn = self.limiter.turns().take().await;
            if turn.begin(self.answer_one(message, client)).await.is_err() {
                return;
            }
        }
    }

    /// Each request is a trace of its own.
    async fn answer_one(
        self: &Arc<Self>,
        message: Bytes,
        client: &ConnectedClient,
    ) -> Result<StreamedAnswer, Refusal> {
        let started = Instant::now();
        let tracer = self.tracer.as_ref();
        let span = tracer.and_then(|tracer| CallSpan::begin(tracer, &HeaderMap::new()));
        let arrival = Arrival { at: started, timeout: None };
        let context = client.batch(arrival, span.as_ref());
        let answer =
            caught(Box::pin(self.answer_batch(METHOD, message, &client.memory, context))).await;
        let answer = answer.unwrap_or(Err(Refusal::Panicked));
        let code = answer.as_ref().map_or_else(|refusal| refusal.codes().0, |_| Code::Ok);
        if let Some(span) = span {
            span.end(METHOD, code);
        }
        self.limiter.metrics().call_of(METHOD, started, code);
        answer.map(|(answer, taken)| {
            let (limiter, calls) = (Arc::clone(&self.limiter), client.calls.clone());
            (answer, (!taken.is_empty()).then(|| Unheard { taken, limiter, calls }))
        })
    }
}
