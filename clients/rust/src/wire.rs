//! Where requests go: to the service, or to a fake of it.

use tonic::{Request, Response, Status};

use crate::channel::Channel;
use crate::fake::{Fake, State};
use crate::v1::tollkeeper_client::TollkeeperClient;
use crate::v1::{CommitRequest, CommitResponse, DecideRequest, DecideResponse};
use crate::v1::{RenewRequest, RenewResponse};

#[derive(Clone)]
pub(crate) enum Wire {
    Service(Box<TollkeeperClient<Channel>>),
    Fake(Fake),
}

type Answer<T> = Result<Response<T>, Status>;

impl Wire {
    pub(crate) fn to(channel: Channel) -> Self {
        let origin = channel.origin.clone();
        let service = TollkeeperClient::with_origin(channel, origin);
        // The answer to 1,000 calls may exceed the default of 4 MiB.
        Self::Service(Box::new(service.max_decoding_message_size(usize::MAX)))
    }

    pub(crate) async fn decide(self, request: Request<DecideRequest>) -> Answer<DecideResponse> {
        match self {
            Self::Service(mut service) => service.decide(request).await,
            Self::Fake(fake) => {
                let verdicts = fake.serve(request.into_inner().calls, State::decide)?;
                Ok(Response::new(DecideResponse { verdicts }))
            }
        }
    }

    pub(crate) async fn commit(self, request: Request<CommitRequest>) -> Answer<CommitResponse> {
        match self {
            Self::Service(mut service) => service.commit(request).await,
            Self::Fake(fake) => {
                let results = fake.serve(request.into_inner().commits, State::commit)?;
                Ok(Response::new(CommitResponse { results }))
            }
        }
    }

    pub(crate) async fn renew(self, request: Request<RenewRequest>) -> Answer<RenewResponse> {
        match self {
            Self::Service(mut service) => service.renew(request).await,
            Self::Fake(fake) => {
                let results = fake.serve(request.into_inner().renewals, State::renew)?;
                Ok(Response::new(RenewResponse { results }))
            }
        }
    }
}
