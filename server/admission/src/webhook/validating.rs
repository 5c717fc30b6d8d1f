//! ValidatingAdmissionWebhook: calls all webhooks concurrently and waits for all of them. The first refusal in their order
//! is the response.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_auth::Authorization;
use ferry_registry::Registry;
use futures::future::join_all;

use super::hooks::Hooks;
use super::mutating::{Round, apply_failure_policy, call_webhook, is_exempt};
use crate::chain::{Phase, Plugin, Request};
use crate::expressions::Context;
use crate::plugins;
use crate::versions::Versioned;

pub fn make(context: &plugins::Context) -> Arc<dyn Plugin> {
    Arc::new(ValidatingWebhooks {
        hooks: Hooks::new(context.registry.clone(), "validatingwebhookconfigurations"),
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct ValidatingWebhooks {
    hooks: Hooks,
    registry: Arc<Registry>,
    authorization: Authorization,
}

#[async_trait]
impl Plugin for ValidatingWebhooks {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        !is_exempt(request) && !self.hooks.current().is_empty()
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let context = Context::new(&self.registry, &self.authorization);
        let mut wanted = Vec::new();
        for hook in self.hooks.current().hooks()? {
            let Some(invocation) = hook.wants(&context, request, object, old).await? else { continue };
            let versioned = Versioned::new(&self.registry, request, object, old, &invocation.kind).await?;
            wanted.push((invocation, versioned));
        }
        let calls = wanted.iter().enumerate().map(|(index, (invocation, versioned))| async move {
            let hook = &invocation.hook;
            let outcome = call_webhook(&self.registry, hook, request, versioned, false).await.map(|_| ());
            apply_failure_policy(hook, request, outcome, "validating", Round { number: 0, index })
        });
        join_all(calls).await.into_iter().collect()
    }
}
