use ferry_example_initializers::{Initializer, long_secrets, run_for_ever};

#[tokio::main]
async fn main() -> Result<(), kube::Error> {
    let initializer = Initializer { name: "long-secrets.example.com".into(), path: "/api/v1/secrets".into() };
    run_for_ever(initializer, long_secrets).await
}
