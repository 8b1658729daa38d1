package cpukit;

import com.google.gson.JsonObject;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import java.nio.charset.StandardCharsets;

/** Why a request is not let in: a status, and a sentence that says what to do. */
record Refusal(int status, String text) {
    static final String RETRY_AFTER_S = "1";

    static final Refusal FULL =
            new Refusal(503, "the bodies of waiting requests fill the memory that is planned for them; try again");
    static final Refusal CROWDED = new Refusal(503, "too many connections are open; close some, or try again");
    static final Refusal ENDING = new Refusal(503, "the server is ending; try again");
    static final Refusal SLOW = new Refusal(408, "the body came too slowly; send it again");
    static final Refusal CUT = new Refusal(400, "the body is not as its head says");

    /** In the same form as the handlers' own refusals: {"code": …, "error": …}. */
    FullHttpResponse toResponse(String id) {
        JsonObject body = new JsonObject();
        body.addProperty("code", status);
        body.addProperty("error", text);
        byte[] bytes = (body + "\n").getBytes(StandardCharsets.UTF_8);
        FullHttpResponse response =
                new DefaultFullHttpResponse(
                        HttpVersion.HTTP_1_1, HttpResponseStatus.valueOf(status), Unpooled.wrappedBuffer(bytes));
        response.headers()
                .set("x-request-id", id)
                .set(HttpHeaderNames.CONTENT_TYPE, HttpHeaderValues.APPLICATION_JSON)
                .set(HttpHeaderNames.CONTENT_LENGTH, bytes.length)
                .set(HttpHeaderNames.CONNECTION, HttpHeaderValues.CLOSE);
        if (status == 401) {
            response.headers().set(HttpHeaderNames.WWW_AUTHENTICATE, "Bearer");
        } else if (status == 503) {
            response.headers().set(HttpHeaderNames.RETRY_AFTER, RETRY_AFTER_S);
        }
        return response;
    }
}
