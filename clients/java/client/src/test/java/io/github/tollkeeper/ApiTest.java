package io.github.tollkeeper;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Executable;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** What other programs may call. */
class ApiTest {
    private static Class<?> load(Path file) {
        try {
            return Class.forName(Client.class.getPackageName() + "." + file.getFileName().toString().replace(".class", ""));
        } catch (ClassNotFoundException absent) {
            throw new AssertionError(absent);
        }
    }

    @Test
    void noneOfItsTypesIsGenerated() throws Exception {
        Path folder = Path.of(Client.class.getResource("Client.class").toURI()).getParent();
        try (Stream<Path> files = Files.list(folder)) {
            List<String> api = files.filter(file -> file.toString().endsWith(".class")).map(ApiTest::load)
                    .filter(type -> Modifier.isPublic(type.getModifiers()))
                    .flatMap(type -> Stream.<Executable>concat(
                            Arrays.stream(type.getMethods()), Arrays.stream(type.getConstructors())))
                    .map(Executable::toGenericString).toList();
            assertTrue(api.stream().anyMatch(it -> it.contains("Client.decide(")));
            assertEquals(List.of(), api.stream().filter(it -> it.contains("tollkeeper.v1.")).toList());
        }
    }
}
