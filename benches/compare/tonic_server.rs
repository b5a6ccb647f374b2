//! tonic's own server, on tokio's usual runtime or on tollkeeper's workers. It prints where it listens,
//! as tollkeeper does, and serves until it is killed.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Mutex, PoisonError},
};

use futures_util::{Stream, stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tollkeeper::process::workers::Workers;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};

use crate::process::Result;

/// Any free port.
const ADDR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Connections that wait until their worker takes them.
const WAITING_MAX: usize = 16;

/// Serves on the runtime of the caller.
pub(crate) async fn on_this_runtime(routes: Routes) -> Result<()> {
    let incoming = TcpIncoming::bind(ADDR)?.with_nodelay(Some(true));
    announce(incoming.local_addr()?);
    Ok(Server::builder().add_routes(routes).serve_with_incoming(incoming).await?)
}

/// Serves on `count` workers, which take connections in turn and keep them.
pub(crate) async fn on_workers(routes: Routes, workers: &Workers, count: usize) -> Result<()> {
    let listener = TcpListener::bind(ADDR).await?;
    announce(listener.local_addr()?);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..count).map(|_| mpsc::channel(WAITING_MAX)).unzip();
    let receivers = Mutex::new(receivers);
    let served = workers.each(|| {
        let receiver = receivers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        serve_worker(routes.clone(), receiver)
    });
    tokio::select! {
        () = served => Err("a worker has ended".into()),
        Err(error) = accept(&listener, &senders) => Err(error),
    }
}

async fn accept(
    listener: &TcpListener,
    workers: &[mpsc::Sender<std::net::TcpStream>],
) -> Result<()> {
    for worker in workers.iter().cycle() {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        worker.send(stream.into_std()?).await?;
    }
    Ok(())
}

async fn serve_worker(routes: Routes, receiver: Option<mpsc::Receiver<std::net::TcpStream>>) {
    let Some(receiver) = receiver else { return };
    let server = Server::builder().add_routes(routes);
    if let Err(error) = server.serve_with_incoming(incoming(receiver)).await {
        eprintln!("compare: {error}");
    }
}

/// The connections of one worker, registered with its runtime.
fn incoming(
    receiver: mpsc::Receiver<std::net::TcpStream>,
) -> impl Stream<Item = io::Result<TcpStream>> {
    stream::unfold(receiver, async |mut receiver| {
        let stream = receiver.recv().await?;
        Some((TcpStream::from_std(stream), receiver))
    })
}

fn announce(addr: SocketAddr) {
    println!("ready: grpc {addr},");
}
