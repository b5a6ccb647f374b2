package io.github.tollkeeper.spring;

import io.github.tollkeeper.Client;
import io.github.tollkeeper.Client.OnCall;
import io.github.tollkeeper.Client.OnFailure;
import io.github.tollkeeper.RateLimitFilter;
import io.github.tollkeeper.spring.TollkeeperProperties.Failure;
import io.github.tollkeeper.spring.TollkeeperProperties.Tls;
import io.grpc.ChannelCredentials;
import io.grpc.TlsChannelCredentials;
import io.micrometer.core.instrument.MeterRegistry;

import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

import java.io.IOException;

/**
 * A client for {@code tollkeeper.address}; a filter if the application has a bean that says what a
 * request is limited by; and a timer {@code tollkeeper.calls} if it has a registry of Micrometer.
 */
@AutoConfiguration(afterName = {
    "org.springframework.boot.actuate.autoconfigure.metrics.CompositeMeterRegistryAutoConfiguration"
})
@ConditionalOnProperty("tollkeeper.address")
@EnableConfigurationProperties(TollkeeperProperties.class)
public class TollkeeperAutoConfiguration {
    @Bean
    @ConditionalOnMissingBean
    Client tollkeeperClient(
            TollkeeperProperties properties, ObjectProvider<OnFailure> onFailure, ObjectProvider<OnCall> onCall)
            throws IOException {
        Client.Builder builder = Client.builder(properties.address(), properties.domain())
                .timeout(properties.timeout())
                .onFailure(properties.onFailure() == Failure.ALLOW ? OnFailure.ALLOW : OnFailure.DENY);
        onFailure.ifAvailable(builder::onFailure);
        onCall.ifAvailable(builder::onCall);
        Tls tls = properties.tls();
        if (tls.isUsed()) {
            builder.tls(credentials(tls));
        }
        if (tls.serverName() != null) {
            builder.serverName(tls.serverName());
        }
        return builder.build();
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
        FilterRegistrationBean<RateLimitFilter> tollkeeperFilter(
                Client client, RateLimitFilter.Descriptors descriptors, TollkeeperProperties properties) {
            var registration = new FilterRegistrationBean<>(new RateLimitFilter(client, descriptors));
            registration.setOrder(properties.filterOrder());
            return registration;
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterRegistry.class)
    static class Metrics {
        @Bean
        @ConditionalOnBean(MeterRegistry.class)
        @ConditionalOnMissingBean
        OnCall tollkeeperMetrics(MeterRegistry registry) {
            return (method, elapsed, outcome) ->
                    registry.timer("tollkeeper.calls", "method", method, "outcome", outcome).record(elapsed);
        }
    }
}
