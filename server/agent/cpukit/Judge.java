package cpukit;

import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.QueryStringDecoder;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.pytorch.serve.util.TokenAuthorization;
import org.pytorch.serve.util.TokenAuthorization.TokenType;

/** Judges a request by its head, before a byte of its body is kept. */
public final class Judge {
    /** The management API is asked with a line and no body. */
    private static final int MANAGEMENT_BYTES = 64 << 10;

    /** Other protocols of TorchServe's are not planned, and some of their paths end in a 500. */
    private static final Pattern SERVED = Pattern.compile("/ping|/predictions/[^/]+(/[^/]+)?");

    private static final String DESCRIBE = "describe";

    private static final String FORM =
            "application/x-www-form-urlencoded (curl's default for -d and --data-binary) is not taken; send a "
                    + "picture with: curl -T photo.jpg …, a form with: curl -F data=@photo.jpg …, JSON with: "
                    + "curl -H 'Content-Type: application/json' -d '{\"text\": \"…\"}' …";

    private final Predicate<String> tokens;
    private final int largest;
    private final boolean predictions;

    Judge(Predicate<String> tokens, int largest, boolean predictions) {
        this.tokens = tokens;
        this.largest = largest;
        this.predictions = predictions;
    }

    /** Of the address of predictions; `largest` is max_request_size. */
    public static Judge ofInference(int largest) {
        return new Judge(bearing(TokenType.INFERENCE), largest, true);
    }

    /** Of the management address; the token that renews others is judged by TorchServe itself. */
    public static Judge ofManagement() {
        Predicate<String> renewing = bearing(TokenType.TOKEN_API);
        return new Judge(bearing(TokenType.MANAGEMENT).or(renewing), MANAGEMENT_BYTES, false);
    }

    /** Of the metrics address, which TorchServe leaves open. */
    public static Judge ofMetrics() {
        return new Judge(header -> true, MANAGEMENT_BYTES, false);
    }

    private static Predicate<String> bearing(TokenType type) {
        return header ->
                !TokenAuthorization.isEnabled()
                        || TokenAuthorization.checkTokenAuthorization(
                                TokenAuthorization.parseTokenFromBearerTokenHeader(header), type);
    }

    int largest() {
        return largest;
    }

    /** null when it may come in. */
    Refusal judge(HttpRequest request) {
        if (!request.decoderResult().isSuccess()) {
            return new Refusal(400, "no HTTP that can be read: " + request.decoderResult().cause().getMessage());
        }
        String header = request.headers().get(HttpHeaderNames.AUTHORIZATION);
        if (!tokens.test(header == null ? "" : header)) {
            return new Refusal(401, "no valid token: send the header Authorization: Bearer <token>; see make status");
        }
        String path = path(request.uri());
        if (path == null) {
            return new Refusal(400, "the path is not percent-encoded: a % needs two hexadecimal digits after it");
        }
        if (predictions && !SERVED.matcher(path).matches()) {
            return new Refusal(404, "nothing is served there: send POST /predictions/<model>, or GET /ping");
        }
        long length = length(request);
        if (length > largest) {
            return tooLarge(length);
        }
        return predictions && isForm(request) && length != 0 ? new Refusal(415, FORM) : null;
    }

    Refusal tooLarge(long length) {
        return new Refusal(413, "the body may have " + largest + " bytes: got " + length);
    }

    /** Bytes of the body: 0 without one, -1 when the head does not tell. */
    static long length(HttpRequest request) {
        if (HttpUtil.isTransferEncodingChunked(request)) {
            return -1;
        }
        return HttpUtil.getContentLength(request, 0L);
    }

    /** null when the whole request may go on; takes away what only TorchServe itself may say. */
    Refusal judgeWhole(FullHttpRequest request, byte[] body) {
        if (predictions) {
            // TorchServe asks a worker to describe itself by this header.
            request.headers().remove(DESCRIBE);
        }
        return predictions ? Forms.judge(request, body) : null;
    }

    private static boolean isForm(HttpRequest request) {
        CharSequence type = HttpUtil.getMimeType(request);
        return type != null && HttpHeaderValues.APPLICATION_X_WWW_FORM_URLENCODED.contentEqualsIgnoreCase(type);
    }

    /** Decoded; null when it cannot be. */
    private static String path(String uri) {
        try {
            QueryStringDecoder decoder = new QueryStringDecoder(uri);
            decoder.parameters();
            return decoder.path();
        } catch (IllegalArgumentException problem) {
            return null;
        }
    }
}
