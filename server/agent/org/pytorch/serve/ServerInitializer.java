package org.pytorch.serve;

import cpukit.Agent;
import cpukit.Gate;
import cpukit.Judge;
import io.netty.channel.Channel;
import io.netty.channel.ChannelInitializer;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.flow.FlowControlHandler;
import io.netty.handler.ssl.SslContext;
import org.pytorch.serve.http.HttpRequestHandler;
import org.pytorch.serve.http.HttpRequestHandlerChain;
import org.pytorch.serve.http.InvalidRequestHandler;
import org.pytorch.serve.http.TokenAuthorizationHandler;
import org.pytorch.serve.http.api.rest.InferenceRequestHandler;
import org.pytorch.serve.http.api.rest.ManagementRequestHandler;
import org.pytorch.serve.http.api.rest.PrometheusMetricsRequestHandler;
import org.pytorch.serve.servingsdk.impl.PluginsManager;
import org.pytorch.serve.util.ConfigManager;
import org.pytorch.serve.util.ConnectorType;
import org.pytorch.serve.util.TokenAuthorization.TokenType;

/**
 * Stands in for TorchServe's class of this name (by Replacement): the same handlers for predictions, management
 * and metrics, behind our gate instead of netty's aggregator, which gathers a body before anybody judges it. No
 * switch and no lambda here: they would be classes of their own, which nothing replaces.
 *
 * <p>Left out: workflows, the API's description and other protocols, which no plan of the kit serves.
 */
public class ServerInitializer extends ChannelInitializer<Channel> {
    /** netty's defaults for the first two, named because they bound what a head may cost. */
    private static final int LINE_BYTES = 4096;

    private static final int HEAD_BYTES = 8192;
    private static final int CHUNK_BYTES = 64 << 10;

    private final SslContext tls;
    private final ConnectorType type;

    public ServerInitializer(SslContext tls, ConnectorType type) {
        this.tls = tls;
        this.type = type;
    }

    @Override
    public void initChannel(Channel channel) {
        Gate.prepare(channel);
        if (tls != null) {
            channel.pipeline().addLast("ssl", tls.newHandler(channel.alloc()));
        }
        channel.pipeline().addLast("http", new HttpServerCodec(LINE_BYTES, HEAD_BYTES, CHUNK_BYTES));
        channel.pipeline().addLast("one-by-one", new FlowControlHandler());
        channel.pipeline().addLast("gate", new Gate(Agent.gatehouse(), judge()));
        channel.pipeline().addLast("handler", new HttpRequestHandler(chain()));
    }

    private Judge judge() {
        if (type == ConnectorType.MANAGEMENT_CONNECTOR) {
            return Judge.ofManagement();
        } else if (type == ConnectorType.METRICS_CONNECTOR) {
            return Judge.ofMetrics();
        }
        return Judge.ofInference(ConfigManager.getInstance().getMaxRequestSize());
    }

    private HttpRequestHandlerChain chain() {
        PluginsManager plugins = PluginsManager.getInstance();
        if (type == ConnectorType.MANAGEMENT_CONNECTOR) {
            return link(
                    new TokenAuthorizationHandler(TokenType.MANAGEMENT),
                    new ManagementRequestHandler(plugins.getManagementEndpoints()));
        } else if (type == ConnectorType.METRICS_CONNECTOR) {
            return link(new PrometheusMetricsRequestHandler());
        } else if (type == ConnectorType.INFERENCE_CONNECTOR) {
            return link(
                    new TokenAuthorizationHandler(TokenType.INFERENCE),
                    new InferenceRequestHandler(plugins.getInferenceEndpoints()));
        }
        throw new IllegalStateException("addresses must differ: the plan gives each its own port");
    }

    private static HttpRequestHandlerChain link(HttpRequestHandlerChain... handlers) {
        HttpRequestHandlerChain last = handlers[0];
        for (int i = 1; i < handlers.length; i++) {
            last = last.setNextHandler(handlers[i]);
        }
        last.setNextHandler(new InvalidRequestHandler());
        return handlers[0];
    }
}
