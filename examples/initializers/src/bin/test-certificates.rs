use ferry_example_initializers::{Initializer, run_for_ever, test_certificates};

/// The namespace is the first argument.
#[tokio::main]
async fn main() -> Result<(), kube::Error> {
    let namespace = std::env::args().nth(1).unwrap_or_else(|| "default".into());
    let initializer =
        Initializer { name: "test-certificates.example.com".into(), path: "/api/v1/pods".into() };
    run_for_ever(initializer, test_certificates(&namespace)).await
}
