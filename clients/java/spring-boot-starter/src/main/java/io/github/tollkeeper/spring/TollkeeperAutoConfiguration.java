package io.github.tollkeeper.spring;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Client.OnCall;
import io.github.tollkeeper.Client.OnFailure;
import io.github.tollkeeper.Options;
import io.github.tollkeeper.RateLimitFilter;
import io.github.tollkeeper.RateLimitFilter.Denial;
import io.github.tollkeeper.spring.TollkeeperProperties.Failure;
import io.github.tollkeeper.spring.TollkeeperProperties.Tls;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.TlsChannelCredentials;
import io.micrometer.core.instrument.MeterRegistry;
import java.io.IOException;
import java.time.Duration;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.InstantiationAwareBeanPostProcessor;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.Ordered;
import org.springframework.util.Assert;
import org.springframework.web.reactive.result.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.servlet.handler.AbstractHandlerMapping;

/**
 * A client for {@code tollkeeper.address}, with a timer {@code tollkeeper.calls} if the application has a registry of
 * Micrometer; a filter if it has a bean that says what a request is limited by; and {@link RateLimited}. Filters are for
 * servlets or WebFlux.
 */
@AutoConfiguration
@EnableConfigurationProperties(TollkeeperProperties.class)
public class TollkeeperAutoConfiguration {
    @Bean
    @ConditionalOnMissingBean
    Client tollkeeperClient(
            TollkeeperProperties properties, ObjectProvider<OnFailure> onFailure, ObjectProvider<OnCall> onCall)
            throws IOException {
        // Without a client, annotations would limit nothing, and nobody would notice.
        Assert.hasText(properties.address(), "tollkeeper.address: must not be empty");
        Assert.hasLength(properties.domain(), "tollkeeper.domain: must not be empty");
        Options options = Options.of(properties.domain())
                .timeout(properties.timeout())
                .commitTimeout(properties.commitTimeout())
                .onFailure(onFailure.getIfAvailable(() ->
                        properties.onFailure() == Failure.ALLOW ? OnFailure.ALLOW : OnFailure.DENY))
                .onCall(onCall.getIfAvailable(() -> OnCall.NONE))
                .requireLimit(properties.requireLimit())
                .rememberDenials(properties.rememberDenials());
        Tls tls = properties.tls();
        ChannelCredentials credentials = tls.isUsed() ? credentials(tls) : InsecureChannelCredentials.create();
        Client client = Client.connect(properties.address(), credentials, options, channel -> {
            if (tls.serverName() != null) {
                channel.overrideAuthority(tls.serverName());
            }
        });
        if (properties.warmUp().compareTo(Duration.ZERO) > 0) {
            client.warmUp(properties.warmUp());
        }
        return client;
    }

    private static ChannelCredentials credentials(Tls tls) throws IOException {
        TlsChannelCredentials.Builder credentials = TlsChannelCredentials.newBuilder();
        if (tls.ca() != null) {
            credentials.trustManager(tls.ca());
        }
        if (tls.cert() != null) {
            credentials.keyManager(tls.cert(), tls.key());
        }
        return credentials.build();
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    static class Filters {
        @Bean
        @ConditionalOnBean(RateLimitFilter.Descriptors.class)
        FilterRegistrationBean<RateLimitFilter> tollkeeperFilter(Client client, RateLimitFilter.Descriptors descriptors,
                ObjectProvider<Denial> denial, TollkeeperProperties properties) {
            var filter = new RateLimitFilter(client, descriptors, denial.getIfAvailable(() -> Denial.TEXT));
            var registration = new FilterRegistrationBean<>(filter);
            registration.setOrder(properties.filterOrder());
            return registration;
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
    @ConditionalOnClass(AbstractHandlerMapping.class)
    static class Routes {
        @Bean
        RateLimitInterceptor tollkeeperRoutes(
                Client client, ObjectProvider<RateLimited.Values> values, ObjectProvider<Denial> denial) {
            return new RateLimitInterceptor(client, values.getIfAvailable(() -> (request, key) -> null),
                    denial.getIfAvailable(() -> Denial.TEXT));
        }

        /** Behind the application's interceptors, also where its own WebMvcConfigurationSupport asks no WebMvcConfigurer. */
        @Bean
        static InstantiationAwareBeanPostProcessor tollkeeperInterceptor(ObjectProvider<RateLimitInterceptor> interceptor) {
            return new InstantiationAwareBeanPostProcessor() {
                @Override
                public boolean postProcessAfterInstantiation(Object bean, String name) {
                    if (bean instanceof AbstractHandlerMapping mapping) {
                        mapping.setInterceptors(interceptor.getObject());
                    }
                    return true;
                }
            };
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.REACTIVE)
    static class WebFilters {
        @Bean
        @ConditionalOnBean(RateLimitWebFilter.Descriptors.class)
        RateLimitWebFilter tollkeeperWebFilter(Client client, RateLimitWebFilter.Descriptors descriptors,
                ObjectProvider<RateLimitWebFilter.Denial> denial, TollkeeperProperties properties) {
            return new RateLimitWebFilter(client, descriptors, denial.getIfAvailable(() -> RateLimitWebFilter.Denial.TEXT),
                    properties.filterOrder());
        }

        @Bean
        RateLimitWebFilter tollkeeperWebRoutes(Client client, ObjectProvider<RequestMappingHandlerMapping> mappings,
                ObjectProvider<RateLimitWebFilter.Values> values, ObjectProvider<RateLimitWebFilter.Denial> denial) {
            var routes = new ReactiveRoutes(mappings.orderedStream().toList(),
                    values.getIfAvailable(() -> (exchange, key) -> null));
            return new RateLimitWebFilter(client, routes, denial.getIfAvailable(() -> RateLimitWebFilter.Denial.TEXT),
                    Ordered.LOWEST_PRECEDENCE);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Metrics {
        /** The registry is looked up when the client is made: its auto-configuration has another name in each Spring Boot. */
        @Bean
        @ConditionalOnMissingBean
        OnCall tollkeeperMetrics(ObjectProvider<MeterRegistry> registries) {
            MeterRegistry registry = registries.getIfUnique();
            return registry == null ? OnCall.NONE : (method, elapsed, outcome) ->
                    registry.timer("tollkeeper.calls", "method", method, "outcome", outcome).record(elapsed);
        }
    }
}
