package cpukit;

import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import org.pytorch.serve.util.TokenAuthorization;

/** Makes the inference token the one of a file; TorchServe only knows random ones. */
final class Token {
    private static final long POLL_MS = 50;
    private static final long SETTLE_MS = 200;

    private Token() {}

    /** Any failure ends the server: with another token than the one asked for it is of no use. */
    static void replace(Path file) {
        try {
            String token = Files.readString(file).trim();
            waitForKeyFile();
            Field key = TokenAuthorization.class.getDeclaredField("inferenceKey");
            key.setAccessible(true);
            key.set(null, token);
            // Writes key_file.json again, with this key in it.
            TokenAuthorization.updateKeyFile(TokenAuthorization.TokenType.MANAGEMENT);
        } catch (IOException | ReflectiveOperationException | InterruptedException problem) {
            System.err.println("Error: token of " + file + " cannot be set: " + problem); // NOPMD
            System.exit(1);
        }
    }

    /** TokenAuthorization.init makes its own keys first, then writes them: before that they would win. */
    private static void waitForKeyFile() throws IOException, InterruptedException {
        Path written = Paths.get(System.getProperty("user.dir"), "key_file.json");
        while (!Files.exists(written) || Files.size(written) == 0) {
            Thread.sleep(POLL_MS);
        }
        Thread.sleep(SETTLE_MS);
    }
}
