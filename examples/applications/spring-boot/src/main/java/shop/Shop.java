package shop;

import java.util.List;
import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.security.config.Customizer;
import org.springframework.security.config.annotation.web.builders.HttpSecurity;
import org.springframework.security.config.http.SessionCreationPolicy;
import org.springframework.security.oauth2.server.resource.introspection.BadOpaqueTokenException;
import org.springframework.security.oauth2.server.resource.introspection.OAuth2IntrospectionAuthenticatedPrincipal;
import org.springframework.security.oauth2.server.resource.introspection.OpaqueTokenIntrospector;
import org.springframework.security.web.SecurityFilterChain;

/** The application, and who its callers are. */
@SpringBootApplication
class Shop {
    /** Stands for your keys. */
    private static final Map<String, String> USERS_BY_KEY = Map.of("key-of-alice", "alice");

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    @Bean
    SecurityFilterChain security(HttpSecurity http) throws Exception {
        return http
                .authorizeHttpRequests(requests -> requests
                        .requestMatchers("/login", "/healthz", "/error").permitAll()
                        .anyRequest().authenticated())
                .oauth2ResourceServer(server -> server.opaqueToken(Customizer.withDefaults()))
                // There are no sessions, whose cookies another site could use.
                .sessionManagement(session -> session.sessionCreationPolicy(SessionCreationPolicy.STATELESS))
                .csrf(csrf -> csrf.disable())
                .build();
    }

    /** Finds the user of `Authorization: Bearer KEY`. */
    @Bean
    OpaqueTokenIntrospector keys() {
        return key -> {
            String user = USERS_BY_KEY.get(key);
            if (user == null) {
                throw new BadOpaqueTokenException("the key is unknown");
            }
            return new OAuth2IntrospectionAuthenticatedPrincipal(user, Map.of("sub", user), List.of());
        };
    }
}
