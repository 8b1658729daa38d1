package cpukit;

import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.multipart.DefaultHttpDataFactory;
import io.netty.handler.codec.http.multipart.HttpPostRequestDecoder;
import java.nio.charset.StandardCharsets;

/** Reads multipart forms once before TorchServe does, which answers 500 to a broken one and counts no fields. */
final class Forms {
    /** A picture, or a text, and a few fields beside it. */
    private static final int MOST_FIELDS = 16;

    private static final String HOW = "; send one with: curl -F data=@photo.jpg …";

    private Forms() {}

    static boolean isForm(HttpRequest request) {
        return type(request).regionMatches(true, 0, "multipart/", 0, "multipart/".length());
    }

    private static String type(HttpRequest request) {
        return request.headers().get(HttpHeaderNames.CONTENT_TYPE, "");
    }

    /** null for what is no multipart form, or a good one; `body` is the request's. */
    static Refusal judge(FullHttpRequest request, byte[] body) {
        if (!isForm(request)) {
            return null;
        }
        String type = type(request);
        String[] boundary = HttpPostRequestDecoder.isMultipart(request) ? boundary(type) : new String[0];
        if (boundary.length == 0) {
            return new Refusal(415, "a multipart form must be multipart/form-data with a boundary: got " + type + HOW);
        }
        int fields = count(body, boundary[0].getBytes(StandardCharsets.ISO_8859_1)) - 1;
        if (fields > MOST_FIELDS) {
            return new Refusal(413, "a form may have " + MOST_FIELDS + " fields: got " + fields + HOW);
        }
        return read(request) == 0 ? new Refusal(400, "the form is broken, or has no field" + HOW) : null;
    }

    private static String[] boundary(String type) {
        for (String part : type.split(";")) {
            String[] pair = part.trim().split("=", 2);
            if (pair.length == 2 && pair[0].equalsIgnoreCase("boundary") && !pair[1].replace("\"", "").isEmpty()) {
                return new String[] {pair[1].replace("\"", "")};
            }
        }
        return new String[0];
    }

    /** Fields that can be read; 0 when any cannot. */
    private static int read(FullHttpRequest request) {
        HttpPostRequestDecoder form = null;
        int fields = 0;
        try {
            form = new HttpPostRequestDecoder(new DefaultHttpDataFactory(false), request);
            while (form.hasNext()) {
                form.next();
                fields++;
            }
        } catch (HttpPostRequestDecoder.EndOfDataDecoderException end) {
            return fields;
        } catch (RuntimeException problem) { // netty throws nearly any type here
            return 0;
        } finally {
            if (form != null) {
                form.destroy();
            }
            request.content().readerIndex(0); // the decoder has read it, and TorchServe's is to read it again
        }
        return fields;
    }

    static int count(byte[] text, byte[] word) {
        int found = 0;
        for (int at = 0; at <= text.length - word.length; at++) {
            int same = 0;
            while (same < word.length && text[at + same] == word[same]) {
                same++;
            }
            if (same == word.length) {
                found++;
                at += word.length - 1;
            }
        }
        return found;
    }
}
