use ferry_example_initializers::{Initializer, run_for_ever, sidecar};

#[tokio::main]
async fn main() -> Result<(), kube::Error> {
    let initializer = Initializer { name: "sidecar.example.com".into(), path: "/api/v1/pods".into() };
    run_for_ever(initializer, sidecar).await
}
